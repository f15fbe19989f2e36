"""`ingot export-onnx`: a model directory in, a folder for onnxruntime out."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.cli.arguments import REVISION, SOURCE, Argument, Arguments
from ingot.cli.numbers import format_bytes, format_seconds, human_int
from ingot.cli.output import facts, print_json, show, table
from ingot.cli.progress import progress_display
from ingot.errors import listed

if TYPE_CHECKING:
    from ingot.onnx.options import OnnxReport

# The names of options and their defaults are those of `OnnxOptions`.
OPTIONS = "opset dtype quantize group_size keep calibrate dequantize max_model_len".split()
ARGUMENTS: Arguments = (
    SOURCE,
    REVISION,
    Argument("-o --output DIR", "the folder to write", Path, required=True),
    Argument("--force", "replace the export if it is there already"),
    Argument(
        "--opset N",
        "23, which has attention, rotation and norm as one operator each (the default), or 18, "
        "which writes them out",
        int,
    ),
    Argument(
        "--dtype",
        "auto (the default) is float32, which onnxruntime runs on any CPU; bfloat16 stores "
        "matrices in half the bytes and widens them where they are used; float16 also multiplies "
        "in it, and keeps keys and values in it, for GPUs",
        choices=("auto", "float32", "bfloat16", "float16"),
    ),
    Argument(
        "--quantize",
        "store weight matrices in the integers of an artifact, which onnxruntime multiplies by its "
        "operator MatMulNBits (default: none); embedding and head are int8 either way",
        choices=("none", "int8", "int4"),
    ),
    Argument("--group-size N", "columns that share a scale: 32, 64 or 128; see ingot compile"),
    Argument(
        "--keep PATTERN=KIND",
        "store the matrices whose names end like PATTERN as KIND: none, int8 or int4; may be "
        "repeated, and the last match wins",
        action="append",
    ),
    Argument("--calibrate TEXTFILE", "round weights by this text; see ingot compile", Path),
    Argument("--dequantize", "of a quantized checkpoint take the numbers; see ingot compile"),
    Argument("--max-model-len N", "longest sequence (default: the model's own)", human_int),
)


def main(args: argparse.Namespace) -> int:
    """Writes a model as ONNX: model.onnx, with keys and values as inputs and outputs, plain.onnx,
    with tokens and positions alone, and what onnxruntime-genai and Optimum read beside them. A
    model of whole texts is one model.onnx, which takes padded batches with a mask. Files are run in
    onnxruntime and held against the float32 reference before the folder appears. Needs the extra
    ingot-lm[onnx]."""
    from ingot.hub.names import model_path
    from ingot.onnx import export_onnx
    from ingot.onnx.output import check_output
    from ingot.onnx.packages import check_packages

    check_output(args.output, force=bool(args.force))
    check_packages()
    asked = {name: getattr(args, name) for name in OPTIONS}
    options = {name: v for name, v in asked.items() if v is not None and v is not False}
    model_dir = model_path(args.model, args.revision)
    with progress_display() as progress:
        report = export_onnx(
            model_dir, args.output, force=bool(args.force), progress=progress, **options
        )
    if args.json:
        print_json(report)
    else:
        show(summary(report))
    return 0


def summary(report: OnnxReport) -> str:
    """Summary of an export in a few lines."""
    weights = report.dtype if report.quantization == "none" else report.quantization
    lines = [
        ("opset", report.opset),
        ("weights", weights),
        *([("in float32", f"products with {listed(list(report.wide))}")] if report.wide else []),
        ("size", format_bytes(sum(report.files.values()))),
        ("time", format_seconds(report.seconds)),
    ]
    rows = [
        (name, format_bytes(report.files[name]), sum(counts.values()), error_text(report, name))
        for name, counts in report.operators.items()
    ]
    header = ("file", "size", "operators", "error against the float32 reference")
    return f"{report.folder}\n{facts(lines)}\n\n{table(rows, header)}"


def error_text(report: OnnxReport, name: str) -> str:
    """The relative error of a file's logits, beside what is allowed."""
    if name not in report.errors:
        return "not measured: too little free memory"
    return f"{report.errors[name]:.1e} (allowed: {report.allowed:g})"
