"""`ingot compile`: a model directory in, an artifact out."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.artifact.quality import quality_line, vectors_line
from ingot.artifact.target import CUDA_REACHES, CUDA_TARGETS
from ingot.cli.arguments import REVISION, SOURCE, Argument, Arguments
from ingot.cli.built import groups_text, ledger_table, name_of, shape_of, stored
from ingot.cli.numbers import format_bytes, format_seconds, human_bytes, human_int
from ingot.cli.output import facts, next_step, print_json, show, table
from ingot.cli.progress import progress_display
from ingot.errors import UsageError

if TYPE_CHECKING:
    from ingot.artifact.manifest import LedgerEntry, Manifest, Numerics
    from ingot.artifact.matrices import StoredMatrix
    from ingot.compiler.options import CompileOptions, Report


def _names(text: str, what: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError(f"name at least one {what}")
    return names


# The names of options and their defaults are those of `CompileOptions`.
ARGUMENTS: Arguments = (
    SOURCE,
    REVISION,
    Argument(
        "-o --output OUT.ingot",
        "where to write the artifact (default: the model's name + .ingot, here)",
        Path,
    ),
    Argument("--force", "replace the artifact if it is there already"),
    Argument(
        "--add",
        "add the targets to the artifact that is there, from the same model and with the same "
        "options; its other files stay as they are",
    ),
    Argument(
        "--target LIST",
        "targets, separated by commas: cpu:native (this machine, the default), cpu:x86-64-v4, "
        "cpu:x86-64-v3, cpu:portable; features can follow a level, as in cpu:x86-64-v3+avx_vnni; "
        f"{', '.join(CUDA_TARGETS)}, which need no GPU to compile, or cuda:native",
        partial(_names, what="target, such as cpu:native"),
        dest="targets",
    ),
    Argument(
        "--programs LIST",
        "what the artifact can do, separated by commas: step generates text, and hidden gives the "
        "hidden states that embeddings are made of (LLM.embed); encode reads whole texts, and "
        "tokens gives a vector for each of their tokens (default: what the model is for)",
        partial(_names, what="program, such as step"),
    ),
    Argument(
        "--from",
        "whose module is compiled: that of a family of ingot (the default), or that of "
        "transformers, for an architecture that no family builds; no code of the model is run",
        choices=("ingot", "transformers"),
        dest="library",
    ),
    Argument(
        "--dtype",
        "auto (the default) is that of the checkpoint, but bfloat16 instead of float16 unless all "
        "targets are GPUs, which alone compute in float16; bfloat16 drops 3 bits of float16 "
        "weights, and float32 keeps them",
        choices=("auto", "float32", "bfloat16", "float16"),
    ),
    Argument(
        "--quantize",
        "store weight matrices in integers (default: none). What errors in each matrix cost is "
        "measured, and each is stored as pays most. int8, int6, int5 and int4 spend the bytes that "
        "this one format would take. auto spends --bits or --max-bytes, or the fewest bytes for "
        "--max-kl (then 0.05 by default)",
        choices=("none", "auto", "int8", "int6", "int5", "int4"),
    ),
    Argument("--bits B", "of --quantize auto: the mean bits of a weight", float),
    Argument(
        "--max-bytes SIZE", "of --quantize auto: the most that weights take, as 90MB", human_bytes
    ),
    Argument(
        "--activations",
        "round the rows that integers multiply to int8, to int16, which doubles the arithmetic of "
        "a prompt, or (auto, the default without --group-size) to int16 where int8 is measured to "
        "cost much",
        choices=("auto", "int8", "int16"),
    ),
    Argument(
        "--group-size N",
        "store all matrices alike, and measure nothing: so many columns share a scale, 32, 64 or "
        "128, or for int8 also channel, a whole row; embedding and head are int8 then. With auto, "
        "the groups to choose from",
    ),
    Argument(
        "--keep PATTERN=KIND",
        "store the matrices whose names end like PATTERN as KIND: none, bf16, int8, int6, int5 or "
        "int4, as in lm_head=bf16; may be repeated, and the last match wins",
        action="append",
    ),
    Argument(
        "--calibrate TEXTFILE",
        "round weights so that results on this text change least (GPTQ); slower and more precise",
        Path,
    ),
    Argument(
        "--quality-text TEXTFILE",
        "measure what the number formats cost on this text (default: texts of several kinds, and a "
        "conversation where the model has a chat template)",
        Path,
    ),
    Argument("--quality-positions N", "tokens of text to score (default: 512)", human_int),
    Argument(
        "--max-kl X",
        "refuse formats whose mean KL to the checkpoint's own numbers is larger, in nats (default: "
        "0.5, which only ruined models exceed)",
        float,
    ),
    Argument("--no-quality", "do not measure what the number formats cost"),
    Argument(
        "--dequantize",
        "of a checkpoint that is quantized already, take the numbers that its integers stand for "
        "(default: keep the integers); --quantize stores these anew",
    ),
    Argument(
        "--kv-dtype",
        "store keys and values like activations (auto, the default), or in int8, which takes half "
        "the memory of bfloat16",
        choices=("auto", "int8"),
    ),
    Argument(
        "--cuda-reach",
        "drivers that load binaries for GPUs: those of CUDA 12 and later (wide, the default), or "
        "those of the newest assembler that Triton brings and later (new)",
        choices=CUDA_REACHES,
    ),
    Argument(
        "--max-model-len N",
        "longest sequence; 32k is 32000, 32K is 32768 (default: the model's own)",
        human_int,
    ),
    Argument("--max-num-seqs N", "most sequences in one step (default: 64)", human_int),
    Argument("--max-num-batched-tokens N", "most tokens in one step (default: 512)", human_int),
    Argument("--page-size N", "tokens of one page of the KV cache (default: 16)", human_int),
    Argument(
        "--disable-pass NAME",
        "leave out an optional pass or a rule of grouping; may be repeated",
        action="append",
        dest="disable_passes",
    ),
    Argument(
        "--verify-passes",
        "run the model before and after every pass, lowering, rewriting and grouping, and compare; "
        "slower",
    ),
    Argument(
        "--dump DIR",
        "write the graph after every pass into DIR; plan and sources are in the artifact",
        Path,
        dest="dump_dir",
    ),
)


def main(args: argparse.Namespace) -> int:
    """Compiles a model directory into an artifact: one folder with packed weights, native code,
    tokenizer and golden outputs. Needs the extra ingot-lm[compile] and a C++ compiler."""
    name = Path(os.path.abspath(args.model)).name.removesuffix(".gguf").replace(":", "-")
    output = args.output or Path(f"{name}.ingot")
    _check_output(output, args.force, args.add)
    options = _options(args)
    from ingot.compiling import add_checked, compile_checked
    from ingot.hub.names import model_path

    model_dir = model_path(args.model, args.revision)
    with progress_display() as progress:
        if args.add:
            report = add_checked(model_dir, output, options, progress)
        else:
            report = compile_checked(
                model_dir, output, options, progress, replace=args.force, blame=_blame
            )
    if args.json:
        print_json(report)
    else:
        show(summary(report))
    return 0


def _blame(folder: Path, model_dir: Path) -> str:
    from ingot.compare.bisect_sides import blame  # imports torch, as a compile does

    return blame(folder, model_dir)


def summary(report: Report) -> str:
    """Summary of a compile in a few lines, and the command to go on with."""
    manifest, root = report.manifest, report.artifact
    size, weights = format_bytes(report.bytes_total), format_bytes(report.weight_bytes)
    numerics = manifest.numerics
    slowest = sorted(report.stage_seconds.items(), key=lambda item: -item[1])[:4]
    stages = ", ".join(f"{stage} {format_seconds(seconds)}" for stage, seconds in slowest)
    lines = [
        ("model", f"{manifest.model.name} ({manifest.model.architecture})"),
        ("targets", ", ".join(target.name for target in manifest.targets)),
        *(("gives", pooler.in_words) for pooler in [manifest.pooler] if pooler),
        ("dtype", report.dtype_reason),
        ("size", f"{size}, of which weights {weights} in {stored(numerics)}"),
        *(("kept", text) for text in report.kept),
        *(("chosen", text) for text in [report.choice] if text),
        *(("ignored", text) for text in report.ignored),
        ("time", f"{format_seconds(report.seconds)}, most of it {stages}"),
        ("golden error", golden_error(report.golden_error, manifest)),
        ("quality", quality_of(numerics, manifest)),
        *(("warning", text) for text in [better_format(report)] if text),
    ]
    # Passes that had something to do; `inspect` shows all.
    ledger = ledger_table(tuple(e for e in manifest.ledger if e.expected or is_counted(e)))
    groups = groups_text(manifest)
    following = next_step(*trial(manifest, str(root)))
    parts = (f"{root}\n{facts(lines)}", matrices_table(report.matrices), ledger, groups, following)
    return "\n\n".join(part for part in parts if part)


def matrices_table(matrices: Sequence[StoredMatrix]) -> str:
    """Table of how matrices are stored; empty if none is in integers."""
    rows = [(name_of(each), shape_of(each), each.stored) for each in matrices]
    return table(rows, ("matrix", "shape", "stored as")) if rows else ""


def is_counted(entry: LedgerEntry) -> bool:
    """Tells whether a pass made primitives of a module that does not say how many it has."""
    return entry.expected is None and entry.matched > 0 and entry.name.startswith("fuse_")


def quality_of(numerics: Numerics, manifest: Manifest) -> str:
    """What the number formats cost, in a line."""
    if manifest.encodes:
        return vectors_line(numerics.vectors)
    return quality_line(numerics.quality)


def trial(manifest: Manifest, root: str) -> tuple[str, ...]:
    """The command that tries an artifact."""
    if not manifest.encodes:
        return "run", root, "Once upon a time"
    embeds = manifest.pooler is None or manifest.pooler.task == "embed"
    return ("embed", root, "README.md") if embeds else ("serve", root)


def golden_error(error: float | None, manifest: Manifest) -> str:
    """The error of the goldens, beside what is allowed."""
    tolerance = manifest.numerics.tolerance
    if error is None:
        why = "this host has none of the targets, or too little free memory"
        return f"not measured: {why} (allowed: {tolerance:g})"
    what = "of rows, relative" if manifest.encodes else "in the mean of log-probabilities"
    return f"{error:.1e} {what} (allowed: {tolerance:g})"


def better_format(report: Report) -> str:
    """Suggests a better format if the quality is poor; empty otherwise."""
    quality, better = report.manifest.numerics.quality, report.better
    if quality is None or better is None:
        return ""
    sizes = f"{format_bytes(better.weight_bytes)} instead of {format_bytes(report.weight_bytes)}"
    return f"a mean KL of {quality.kl:.2g} is much; {better.options} loses less, at {sizes}"


def _check_output(output: Path, force: bool, add: bool) -> None:
    """Refuses at once what the writer of the artifact would refuse after minutes of work."""
    from ingot.artifact.writer import check_writable, refuse_existing, refuse_missing

    check_writable(output)
    if add and force:
        raise UsageError(
            "--add and --force are both given",
            hint="--add keeps the artifact and adds to it; --force replaces it.",
        )
    if add:
        refuse_missing(output)
    elif not force:
        refuse_existing(output)


def _options(args: argparse.Namespace) -> CompileOptions:
    from ingot.compiler.options import CompileOptions

    names = {field.name for field in fields(CompileOptions)} - {"quality"}
    given = {"quality": not args.no_quality, **{name: getattr(args, name) for name in names}}
    return CompileOptions(**{name: value for name, value in given.items() if value is not None})
