"""`ingot verify`: is the artifact intact, and does it compute the right results on this host?"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.cli.arguments import DEVICE, MODEL, REVISION, Argument, Arguments
from ingot.cli.output import facts, print_json, show
from ingot.cli.progress import progress_display
from ingot.errors import VerificationError

if TYPE_CHECKING:
    from ingot.artifact.reader import Artifact
    from ingot.runtime.verify import RowsDifference, Verification

ARGUMENTS: Arguments = (
    MODEL,
    REVISION,
    DEVICE,
    Argument(
        "--golden FILE",
        "replay the goldens in this file, which `ingot golden record` wrote of the model, instead "
        "of those in the artifact",
        Path,
    ),
)


def main(args: argparse.Namespace) -> int:
    """Checks the hash of every file, then replays the golden prompts on this host in several ways
    and compares them with the float32 reference. Exit code 4 if they differ.

    A file of goldens serves every artifact of its model, in any number format."""
    from ingot.artifact.reader import Artifact
    from ingot.artifact.tree import is_artifact
    from ingot.compiled import resolve
    from ingot.compiler.choose_targets import for_device
    from ingot.hub.names import model_path
    from ingot.runtime.goldens import check_fit, golden_file
    from ingot.runtime.verify import replay

    golden = golden_file(args.golden) if args.golden else None
    wanted = None if is_artifact(Path(args.model)) else for_device(args.device)
    path = resolve(model_path(args.model, args.revision), wanted)
    with progress_display() as progress:
        progress("hashes", str(path), None)
        artifact = Artifact.open(path, "full", device=args.device)
        if golden:
            check_fit(golden, args.golden, artifact)
        progress("golden", "replaying the golden prompts", None)
        result = replay(artifact, golden)
    if args.json:
        return _finish_json(artifact, result)
    if result.passed:
        show(summary(artifact, result))
    result.raise_if_failed()
    return 0


def summary(artifact: Artifact, result: Verification) -> str:
    """Summary of what was checked, and what was found."""
    texts = f"{result.num_prompts} texts"
    if result.differences:
        texts = f"{result.num_prompts} prompts, {result.num_positions} positions"
    ways = ", ".join(result.differences) or "alone, together, in reverse order"
    rows = [
        ("files", f"{len(artifact.manifest.files)} hashes match"),
        ("golden", f"{texts}, {result.number_format}"),
        *(_of_logits(result) if result.differences else ()),
        *(line for name, each in result.programs.items() for line in _of_rows(name, each)),
        ("ways", f"{ways}: the same bits"),
    ]
    return f"{artifact.path}: verified on this host as {artifact.target.name}\n{facts(rows)}"


def _of_rows(program: str, found: RowsDifference) -> list[tuple[str, str]]:
    return [
        (program, f"relative error {found.error:.1e}, {found.allowed:.1e} allowed"),
        ("", f"largest error {found.largest:.1e}, cosine {found.cosine:.7f} or more"),
    ]


def _of_logits(result: Verification) -> list[tuple[str, str]]:
    near, allowed = len(result.mismatches), result.allowed
    return [
        ("mean error", f"{result.mean_error:.1e}, {allowed.mean:.1e} allowed"),
        ("largest error", f"{result.max_error:.1e}, {allowed.largest:.1e} allowed"),
        ("divergence", f"{result.kl:.1e} nats, {allowed.kl:.1e} allowed"),
        ("near ties", f"{near}" if near else "none"),
    ]


def _finish_json(artifact: Artifact, result: Verification) -> int:
    extra = {
        "passed": result.passed,
        "target": artifact.target.name,
        "mean_error": result.mean_error,
        "max_error": result.max_error,
        "kl": result.kl,
        "num_files": len(artifact.manifest.files),
    }
    print_json(extra | asdict(result))
    if result.passed:
        return 0
    print("error: this host does not reproduce the golden outputs", file=sys.stderr)
    return VerificationError.exit_code
