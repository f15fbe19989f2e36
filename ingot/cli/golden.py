"""`ingot golden record`: what the float32 reference says of a model, in a file to check against."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.cli.arguments import REVISION, SOURCE, Argument, Arguments
from ingot.cli.numbers import human_int
from ingot.cli.output import facts, next_step, print_json, show, table
from ingot.cli.progress import progress_display

if TYPE_CHECKING:
    from ingot.artifact.golden import Tolerance
    from ingot.artifact.golden_rows import RowsTolerance
    from ingot.runtime.goldens import AnyGolden


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
    Argument(
        "--tokens N", "tokens that follow each prompt of a model that generates (default: 32)",
        _count,
    ),
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
    format may be off by. Of a model of whole texts it records the vector, or the scores, of each.
    `ingot verify ARTIFACT --golden FILE` holds artifacts against it. Needs the extra
    ingot-lm[compile].

    The file is JSON with a line for each position or text, so that a change of the model shows in a
    diff.
    """
    from ingot.compiling import check_golden_out, record_goldens
    from ingot.hub.names import model_path

    check_golden_out(args.output, replace=args.force)
    model_dir = model_path(args.model, args.revision)
    from ingot.compiler.record_options import RecordOptions
    from ingot.runtime.goldens import decode_any

    given = {each.names[-1][2:].replace("-", "_") for each in OPTIONS if isinstance(each, Argument)}
    options = {name: value for name in given if (value := getattr(args, name)) is not None}
    with progress_display() as progress:
        data = record_goldens(
            model_dir, args.output, RecordOptions(**options), progress, replace=args.force
        )
    golden = decode_any(data, str(args.output))
    if args.json:
        print_json(summary_json(args.output, golden))
    else:
        show(summary(args.output, golden))
    return 0


# What a tolerance has, as heads of a table.
HEADS = {"mean": "mean allowed", "largest": "largest allowed", "kl": "divergence allowed"}


def summary(path: Path, golden: AnyGolden) -> str:
    """Summary of a recording, and the command to go on with."""
    tolerances: dict[str, Tolerance | RowsTolerance] = {**golden.tolerances}
    formats = [
        (name, *(f"{value:.1e}" for value in asdict(each).values()))
        for name, each in tolerances.items()
    ]
    names = asdict(next(iter(tolerances.values())))
    head = ("number format", *(HEADS.get(name, name) for name in names))
    model = ("model", f"{golden.model.name} ({golden.model.architecture})")
    following = next_step("verify", "ARTIFACT", "--golden", str(path))
    return f"{path}\n{facts((model, *_counted(golden)))}\n\n{table(formats, head)}\n\n{following}"


def _counted(golden: AnyGolden) -> list[tuple[str, str]]:
    found = counts(golden)
    if "sampled" not in found:
        return [("texts", f"{found['prompts']}, each as {found['columns']} numbers")]
    given = found["prompts"] - found["sampled"]
    return [
        ("prompts", f"{given}, and {found['sampled']} texts that were drawn"),
        ("positions", f"{found['positions']}"),
    ]


def counts(golden: AnyGolden) -> dict[str, int]:
    """How much was recorded."""
    from ingot.artifact.golden_rows import GoldenRows

    if isinstance(golden, GoldenRows):
        return {"prompts": len(golden.prompts), "columns": len(golden.prompts[0].row)}
    return {
        "prompts": len(golden.prompts),
        "sampled": sum(prompt.sampled for prompt in golden.prompts),
        "positions": sum(len(prompt.scored) for prompt in golden.prompts),
    }


def summary_json(path: Path, golden: AnyGolden) -> dict[str, object]:
    """Summary of a recording as data."""
    named = {"path": path, "model": golden.model.name}
    return {**named, **counts(golden), "tolerances": golden.tolerances}
