"""`ingot explain`: can this model directory be compiled, and what would it need?"""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from ingot.cli.arguments import REVISION, SOURCE, Arguments
from ingot.cli.numbers import format_bytes, format_count
from ingot.cli.output import command, facts, next_step, print_json, show
from ingot.errors import ModelDirError, UsageError

if TYPE_CHECKING:
    from ingot.compiler.explain import Explanation

NAME = "explain"
SUMMARY = "tell whether a model is supported, why, and what it needs"
ARGUMENTS: Arguments = (SOURCE, REVISION)


def main(args: argparse.Namespace) -> int:
    """Tells whether a model is supported, and what disk and memory it needs; or why it is not, and
    what comes nearest. Reads no weights, and downloads none. Exit code 0 if it is supported, 2 if
    not."""
    from ingot.artifact.tree import is_artifact

    if is_artifact(Path(args.model)):
        see = f"{command()} inspect {quote(args.model)}"
        raise UsageError(
            f"{args.model} is an artifact, and explain is about model directories",
            hint=f"To see what the artifact holds and needs: {see}",
        )
    from ingot.compiler.explain import explain
    from ingot.hub import model_outline

    with model_outline(args.model, args.revision) as model_dir:
        explanation = explain(model_dir)
    if args.json:
        print_json(explanation)
    else:
        show(summary(args.model, explanation, args.revision))
    return 0 if explanation.supported else ModelDirError.exit_code


def summary(model: str, explanation: Explanation, revision: str | None = None) -> str:
    """The explanation as text."""
    verdict = "supported" if explanation.supported else "not supported"
    lines = [f"{model}: {verdict}", _identity(explanation)]
    if explanation.reasons:
        lines.append("\n".join(f"  - {reason}" for reason in explanation.reasons))
    if explanation.supported:
        option = ("--revision", revision) if revision else ()
        lines += [_needs(explanation), next_step("compile", model, *option)]
    return "\n\n".join(line for line in lines if line)


def _identity(explanation: Explanation) -> str:
    rows = (
        ("architecture", explanation.architecture or "none named"),
        ("family", explanation.family),
        ("nearest", explanation.nearest),
        ("differing", ", ".join(explanation.differing)),
    )
    return facts((name, value) for name, value in rows if value)


def _needs(explanation: Explanation) -> str:
    rows = [("parameters", format_count(explanation.num_parameters))]
    rows += [
        (f"as {dtype}", f"{format_bytes(size)} on disk and in memory")
        for dtype, size in explanation.bytes_by_dtype.items()
    ]
    rows.append(("KV cache", f"{format_bytes(explanation.kv_bytes_per_token)} a token"))
    return facts(rows)
