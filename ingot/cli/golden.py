"""`ingot golden record`: what the float32 reference says of a model, in a file to check against."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.cli.arguments import REVISION, SOURCE, Argument, Arguments
from ingot.cli.numbers import human_int
from ingot.cli.output import facts, next_step, print_json, show, table
from ingot.cli.progress import progress_display

if TYPE_CHECKING:
    from ingot.artifact.golden import Golden


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError("name at least one number format, such as bfloat16")
    return names


# The names of options and their defaults are those of `RecordOptions`.
OPTIONS: Arguments = (
    Argument(
        "--prompts FILE",
        'prompts, a text a line or JSON a line: {"prompt": "text"} or {"prompt": [token ids]} '
        "(default: a few short texts)",
        Path,
    ),
    Argument("--tokens N", "tokens that follow each prompt (default: 32)", _count),
    Argument(
        "--samples N", "texts that the reference draws, to measure on them, too (default: 16)",
        _count,
    ),
    Argument("--seed N", "of what the reference draws (default: 0)", _count),
    Argument(
        "--formats LIST",
        "number formats that artifacts may have, separated by commas, such as "
        "bfloat16,int8-channel,int4-g64,int4+int8-cache (default: float32, bfloat16, float16, int8 "
        "and int4 in the groups that a compile chooses, and bfloat16+int8-cache)",
        _names,
    ),
    Argument(
        "--max-model-len N",
        "as the artifacts are compiled with; dynamic and longrope frequencies depend on it "
        "(default: the model's own)",
        human_int,
    ),
)  # fmt: skip
ARGUMENTS: Arguments = (
    SOURCE,
    REVISION,
    Argument("-o --output FILE", "where to write the goldens", Path, required=True),
    Argument("--force", "replace the file if it is there already"),
    *OPTIONS,
)


def main(args: argparse.Namespace) -> int:
    """Records what the float32 reference says of a model: the likeliest tokens after each prompt
    with their log-probabilities and margins, texts that it draws itself, and what each number
    format may be off by. `ingot verify ARTIFACT --golden FILE` holds artifacts against it. Needs
    the extra ingot-lm[compile].

    The file is JSON with a line for each position, so that a change of the model shows in a diff.
    """
    from ingot.artifact.golden import decode_golden
    from ingot.compiling import check_golden_out, record_goldens
    from ingot.hub.names import model_path

    check_golden_out(args.output, replace=args.force)
    model_dir = model_path(args.model, args.revision)
    from ingot.compiler.record_options import RecordOptions

    given = {each.names[-1][2:].replace("-", "_") for each in OPTIONS if isinstance(each, Argument)}
    options = {name: value for name in given if (value := getattr(args, name)) is not None}
    with progress_display() as progress:
        data = record_goldens(
            model_dir, args.output, RecordOptions(**options), progress, replace=args.force
        )
    golden = decode_golden(data, str(args.output))
    if args.json:
        print_json(summary_json(args.output, golden))
    else:
        show(summary(args.output, golden))
    return 0


def summary(path: Path, golden: Golden) -> str:
    """Summary of a recording, and the command to go on with."""
    sampled = sum(prompt.sampled for prompt in golden.prompts)
    rows = [
        ("model", f"{golden.model.name} ({golden.model.architecture})"),
        ("prompts", f"{len(golden.prompts) - sampled}, and {sampled} texts that were drawn"),
        ("positions", f"{sum(len(prompt.scored) for prompt in golden.prompts)}"),
    ]
    formats = [
        (name, f"{each.noise:.1e}", f"{each.mean:.1e}", f"{each.largest:.1e}", f"{each.kl:.1e}")
        for name, each in golden.tolerances.items()
    ]
    head = ("number format", "noise", "mean allowed", "largest allowed", "divergence allowed")
    following = next_step("verify", "ARTIFACT", "--golden", str(path))
    return f"{path}\n{facts(rows)}\n\n{table(formats, head)}\n\n{following}"


def summary_json(path: Path, golden: Golden) -> dict[str, object]:
    """Summary of a recording as data."""
    return {
        "path": path,
        "model": golden.model.name,
        "prompts": len(golden.prompts),
        "sampled": sum(prompt.sampled for prompt in golden.prompts),
        "positions": sum(len(prompt.scored) for prompt in golden.prompts),
        "tolerances": golden.tolerances,
    }
