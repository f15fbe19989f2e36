"""PyTorch's dtypes by the names that plans give them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ingot.artifact.formats import DType

TORCH_DTYPES: Mapping[DType, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
}
# Graphs count in int64 until they have the inputs of a step.
NAMES: Mapping[torch.dtype, DType] = {
    **{dtype: name for name, dtype in TORCH_DTYPES.items()},
    torch.int64: "int32",
}
