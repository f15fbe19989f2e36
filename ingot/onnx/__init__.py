"""Writes models as ONNX: those that generate, with keys and values as inputs and without, and those
of whole texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ingot.compiler.options import Progress
    from ingot.onnx.options import OnnxReport


def export_onnx(
    model_dir: str | Path,
    out: str | Path,
    *,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> OnnxReport:
    """Writes a model directory as ONNX into the folder `out`, checked by onnxruntime.

    Args:
        force: replace an export that is at `out` already.
        progress: called as progress(stage, detail, fraction).
        options: as of `ingot.onnx.options.OnnxOptions`, such as opset=18 or quantize="int4".

    Raises IngotError, whose type names the fault; nothing is then left at `out`.
    """
    from ingot.compiler.options import silent
    from ingot.compiler.torch_import import import_torch
    from ingot.models.model_dir import ModelDir
    from ingot.onnx.options import OnnxOptions
    from ingot.onnx.output import check_output
    from ingot.onnx.packages import check_packages

    out, given = Path(out), OnnxOptions(**options)
    source = ModelDir.open(Path(model_dir))
    source.check()
    check_output(out, force=force)
    check_packages()
    import_torch()
    from ingot.onnx.export import export_model

    return export_model(source, out, given, progress or silent, replace=force)
