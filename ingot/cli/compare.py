"""`ingot compare`: how far is a model from another form of it?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.cli.arguments import REVISION, Argument, Arguments
from ingot.cli.numbers import allowed, human_int, whole_number
from ingot.cli.output import print_json, show
from ingot.cli.progress import progress_display
from ingot.compare.forms import OF_VECTORS
from ingot.errors import UsageError, VerificationError

if TYPE_CHECKING:
    from ingot.compare.bisect_sides import Bisection
    from ingot.compare.compare import Comparison
    from ingot.compare.pair import Pair
    from ingot.compare.prompts import ComparedPrompt
    from ingot.compare.sides import Side

SIDE = "an artifact, a model directory, a model on the hub, hf:MODEL_DIR or FILE.onnx"


def _targets(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(names) > 2:
        raise argparse.ArgumentTypeError("name one target, or two: cpu:x86-64-v4,cpu:portable")
    return names


ARGUMENTS: Arguments = (
    Argument("a A", f"what is judged: {SIDE}"),
    Argument("b B", f"the reference: {SIDE}"),
    REVISION,
    Argument(
        "--prompts FILE",
        'a text a line, or JSON a line: {"prompt": "text"} or {"prompt": [token ids]} (default: '
        "the golden prompts of an artifact, or those that a compile would make)",
        Path,
    ),
    Argument("--random N", "N prompts of random tokens instead", human_int),
    Argument("--seed N", "of --random (default: 0)", whole_number, default=0),
    Argument(
        "--tokens N",
        "how many greedy tokens after each prompt to compare (default: 16)",
        whole_number,
        default=16,
    ),
    Argument(
        "--target T[,U]",
        "which target of the artifacts to run, or one for each (default: the best for this host)",
        _targets,
        default=(),
    ),
    Argument(
        "--hf-dtype",
        "what hf: computes in (default: float32)",
        choices=("float32", "bfloat16", "float16"),
        default="",
    ),
    Argument("--max-kl X", "exit with code 4 where the mean KL exceeds X nats", allowed),
    Argument("--max-error X", "exit with code 4 where the relative error exceeds X", allowed),
    Argument(
        "--bisect",
        "find the first weight, instruction or kernel that does what it should not, and exit with "
        "code 4 if there is one",
    ),
    Argument(
        "--save DIR",
        "with --bisect: a new folder that shows the first fault by itself, for a bug report",
        Path,
    ),
)


def main(args: argparse.Namespace) -> int:
    """Runs A and B on the same prompts and tells how far the logits of A are from those of B:
    the largest and the relative error, KL(B ‖ A), how often their likeliest tokens agree, and the
    first greedy token that differs.

    A model directory is run in float32 by its plain module, which has no kernel, pass or rounding;
    hf: runs it by transformers, and an .onnx file is run by onnxruntime. `--target` with two names
    compares two targets of one artifact, given as A and as B. Of models of whole texts the vectors
    or the scores of labels are compared, and the least cosine is told. Exit code 4 if a limit that
    was given is exceeded.

    `--bisect` runs every artifact among the two once more, kernel by kernel: are its packed weights
    those of the model, does each instruction compute what its module does, and does each kernel, as
    compiled, leave what its instructions make of what it was given? docs/debugging.md says how to
    read the answer."""
    from ingot.cli import bisect_report
    from ingot.cli.compare_report import as_object, exceeded, summary
    from ingot.compare.compare import compare_pair
    from ingot.compare.pair import Pair

    _check_bisect(args)
    source = _source(args)
    pair = Pair(
        names=(args.a, args.b), targets=args.target, revision=args.revision, dtype=args.hf_dtype
    )
    with progress_display() as progress:
        found = compare_pair(pair, source, num_greedy=args.tokens, progress=progress)
        bisections = _bisected(pair, source, found, progress) if args.bisect else []
    _check_limits(args, found)
    failures = exceeded(found.measures, max_kl=args.max_kl, max_error=args.max_error)
    failures += _faults(bisections)
    if args.json:
        more = {"bisect": list(map(bisect_report.as_object, bisections))} if args.bisect else {}
        print_json(as_object(found, passed=not failures) | more)
    else:
        show("\n\n".join((summary(found), *map(bisect_report.summary, bisections))))
    if args.save is not None:
        _save(args.save, bisections)
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return VerificationError.exit_code if failures else 0


def _check_limits(args: argparse.Namespace, found: Comparison) -> None:
    """Raises UsageError for a limit of what vectors have not."""
    if args.max_kl is not None and found.task in OF_VECTORS:
        raise UsageError(
            "--max-kl is given, and vectors are no distribution", hint="Give --max-error instead."
        )


def _check_bisect(args: argparse.Namespace) -> None:
    """Raises UsageError for a folder to save in that cannot be used, and CompileError without
    PyTorch, before anything runs."""
    if args.save is not None and not args.bisect:
        raise UsageError("--save is given without --bisect", hint="It saves what --bisect finds.")
    if args.bisect:
        from ingot.compiler.torch_import import check_torch

        check_torch()
    if args.save is not None:
        from ingot.compare.reproducer import check_new

        check_new(args.save)


def _bisected(
    pair: Pair,
    source: Callable[[Sequence[Side]], list[ComparedPrompt]],
    found: Comparison,
    progress: Callable[[str, str, float | None], None],
) -> list[Bisection]:
    """Bisects the artifacts of a pair on the prompts that differ most."""
    from ingot.compare.bisect_sides import bisect_pair

    progress("bisect", "kernel by kernel", None)
    return bisect_pair(pair, source, [each.where for each in found.worst], progress)


def _faults(bisections: Sequence[Bisection]) -> list[str]:
    """The first fault of each artifact, in words."""
    first = [(each.subject, each.found[0].finding) for each in bisections if each.found]
    return [
        f"{name}: kernel {found.number}, {found.kernel} of {found.origin}, does not do what it "
        "should"
        for name, found in first
    ]


def _save(folder: Path, bisections: Sequence[Bisection]) -> None:
    from ingot.compare.reproducer import save

    faulty = next((each for each in bisections if each.found), None)
    if faulty is None:
        print(f"nothing is saved in {folder}: there is no fault", file=sys.stderr)
        return
    save(folder, faulty.found[0], faulty.kernels)
    print(f"saved in {folder}: python {folder / 'reproduce.py'} shows it", file=sys.stderr)


def _source(args: argparse.Namespace) -> Callable[[Sequence[Side]], list[ComparedPrompt]]:
    """Picks what makes the prompts once the sides are open.

    Raises UsageError for a file that has no prompts.
    """
    from ingot.compare import prompts
    from ingot.compiler.prompt_file import read_prompts

    if args.prompts is not None and args.random is not None:
        raise UsageError("--prompts and --random are both given", hint="Give one of them.")
    if args.prompts is not None:
        return partial(prompts.given_prompts, read_prompts(args.prompts))
    if args.random is not None:
        return partial(prompts.random_prompts, args.random, args.seed)
    return prompts.golden_prompts
