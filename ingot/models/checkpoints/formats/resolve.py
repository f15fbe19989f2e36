"""Puts the quantized matrices of a checkpoint beside its other tensors, by the format that
`config.json` names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ingot.errors import (
    CheckpointError,
    IngotError,
    Noting,
    OnFault,
    UnsupportedModelError,
    listed,
    raise_fault,
)
from ingot.models.checkpoints.formats import awq, compressed_tensors, float8, gptq, mxfp4
from ingot.models.checkpoints.formats.parts import Infos
from ingot.models.checkpoints.formats.quantized import QuantizedTensor
from ingot.models.checkpoints.formats.settings import QuantizationKeys
from ingot.models.checkpoints.mapped_file import TensorInfo
from ingot.models.model_dir import ModelDir

Find = Callable[[QuantizationKeys, Infos, OnFault], Iterator[QuantizedTensor]]


def _found_already(
    settings: QuantizationKeys, infos: Infos, on_fault: OnFault
) -> Iterator[QuantizedTensor]:
    """Matrices of files that say of each tensor how it is stored."""
    return (info for info in infos.values() if isinstance(info, QuantizedTensor))


# By `quant_method`; its matrices, or a fault for each that is not whole.
FORMATS: Mapping[str, Find] = {
    "awq": awq.find,
    "compressed-tensors": compressed_tensors.find,
    "fbgemm_fp8": float8.find_rows,
    "fp8": float8.find_blocks,
    "gguf": _found_already,
    "gptq": gptq.find,
    "mxfp4": mxfp4.find,
}
# The layouts of auto-round, by its `packing_format`.
AUTO_ROUND = {"auto_round:auto_gptq": "gptq", "auto_round:auto_awq": "awq"}
REFUSED = {
    "bitsandbytes": "bitsandbytes keeps the shapes of matrices outside their headers; load the "
    "model with transformers, call dequantize(), save it, and give --quantize int8 or int4",
    "torchao": "torchao packs weights for one kind of machine; take the original model, and give "
    "--quantize int8 or int4",
}
# Ends of tensors' names that only quantized matrices have.
ENDS = (".qweight", ".qzeros", ".weight_packed", ".weight_scale", ".weight_scale_inv", "_blocks")


def with_quantized(
    model_dir: ModelDir, infos: Mapping[str, TensorInfo], on_fault: OnFault = raise_fault
) -> dict[str, TensorInfo]:
    """The tensors of a checkpoint, where each quantized matrix stands for those that it is in.

    Args:
        infos: all tensors of the files.
        on_fault: gets an UnsupportedModelError or a ConfigError for a format or settings that are
            not supported, and a CheckpointError for each matrix whose tensors do not fit together.
    """
    matrices: list[QuantizedTensor] = []
    faults: list[IngotError] = []

    def note(fault: IngotError) -> None:
        faults.append(fault)
        on_fault(fault)

    with Noting(note):
        settings = model_dir.quantization
        if settings is not None:
            matrices += _format(settings)(settings, infos, note)
            if not matrices and not faults:
                raise _none(settings)
    used = {part.name for matrix in matrices for part in matrix.parts}
    found = {name: info for name, info in infos.items() if name not in used}
    if twice := sorted(matrix.name for matrix in matrices if matrix.name in found):
        on_fault(
            CheckpointError(
                f"the checkpoint has {listed(twice)} as they are and quantized",
                hint="keep one of the two, or fetch the checkpoint again",
            )
        )
    found |= {matrix.name: matrix for matrix in matrices}
    _refuse_others(found, on_fault)
    return found


def _format(settings: QuantizationKeys) -> Find:
    """Function that finds the matrices of a quantization. Raises UnsupportedModelError."""
    method = settings.get("quant_method")
    if method in ("auto-round", "intel/auto-round"):
        method = AUTO_ROUND.get(settings.get("packing_format"), method)
    if isinstance(method, str) and method in FORMATS:
        return FORMATS[method]
    known = f"supported: {', '.join(FORMATS)}; or take the original model and --quantize int4"
    raise UnsupportedModelError(
        f"{settings.where} has quant_method {method!r}, which ingot does not read",
        hint=REFUSED.get(method, known) if isinstance(method, str) else known,
    )


def _none(settings: QuantizationKeys) -> CheckpointError:
    method = settings.get("quant_method")
    return CheckpointError(
        f"{settings.where} has quant_method {method!r}, but no tensor is stored so",
        hint="remove the key if these are the original weights, or fetch the quantized ones",
    )


def _refuse_others(infos: Infos, on_fault: OnFault) -> None:
    """Notes tensors of a format that is not the one of the config."""
    odd = sorted(
        info.name
        for info in infos.values()
        if info.name.endswith(ENDS) and not isinstance(info, QuantizedTensor)
    )
    if odd:
        on_fault(
            CheckpointError(
                f"the checkpoint has tensors of another quantized format: {listed(odd)}",
                hint="check that the quantization_config of config.json belongs to these weights, "
                "and that all are in one format",
            )
        )
