"""Matrices that other programs packed and unpacked: `recorded.json` names program and function.

Each has 32 outputs, 64 inputs and groups of 32. The hexadecimal digits of `codes` and `zeros` are
the integers as the program itself decodes them, a row for each output; words have eight digits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ingot.errors import raise_fault
from ingot.models.checkpoints.checkpoint import scaled
from ingot.models.checkpoints.formats import awq, gptq
from ingot.models.checkpoints.formats.quantized import Array, QuantizedTensor
from ingot.models.checkpoints.formats.settings import QuantizationKeys
from ingot.models.checkpoints.mapped_file import TensorInfo

RECORDED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("recorded.json").read_text()
)
FIND = {"gptq": gptq.find, "awq": awq.find}
GROUP = 32


def digits(rows: list[str], each: int) -> Array:
    """Rows of hexadecimal numbers, each of so many digits."""
    values = [[int(row[i : i + each], 16) for i in range(0, len(row), each)] for row in rows]
    return np.array(values, np.uint32)


def tensors_of(recorded: dict[str, Any]) -> dict[str, Array]:
    scales = np.array(recorded["scales of 1/4096"], np.float32) / 4096
    found = {"scales": scales.astype(np.float16)}
    for name in ("qweight", "qzeros"):
        found[name] = digits(recorded[name], 8).view(np.int32)
    return {f"a.{name}": array for name, array in found.items()}


def matrix_of(config: dict[str, Any], tensors: dict[str, Array]) -> QuantizedTensor:
    dtypes = {"int32": "I32", "float16": "F16"}
    infos = {n: TensorInfo(n, dtypes[str(t.dtype)], t.shape, 0, 0) for n, t in tensors.items()}
    (matrix,) = FIND[config["quant_method"]](QuantizationKeys(config), infos, raise_fault)
    return matrix


def numbers_of(recorded: dict[str, Any]) -> Array:
    """What the program makes of the words: (code - zero of the group) * scale of the group."""
    each = 2 if recorded["config"]["bits"] == 8 else 1
    codes, zeros = (digits(recorded[name], each).astype(np.float32) for name in ("codes", "zeros"))
    scales = np.array(recorded["scales of 1/4096"], np.float32).T / 4096
    return (codes - zeros.repeat(GROUP, 1)) * scales.repeat(GROUP, 1)


@pytest.mark.parametrize("name", RECORDED)
def test_they_are_read_as_the_program_reads_them(name: str) -> None:
    config, tensors = RECORDED[name]["config"], tensors_of(RECORDED[name])
    matrix = matrix_of(config, tensors)
    rows = matrix.encoding.rows(lambda info: tensors[info.name], 0, 32)
    assert np.array_equal(rows.numbers(), numbers_of(RECORDED[name]))
    assert matrix.encoding.storage is not None
    assert torch.equal(
        scaled("a", rows, matrix.encoding.storage).dequantize(), torch.from_numpy(rows.numbers())
    )


@pytest.mark.parametrize("name", ["gptq", "gptq-zeros"])
def test_another_version_of_the_layout_has_other_zeros(name: str) -> None:
    """The control: zeros less one, or as they are."""
    tensors = tensors_of(RECORDED[name])
    read = []
    for version in ("gptq", "gptq_v2"):
        config = RECORDED[name]["config"] | {"checkpoint_format": version, "sym": False}
        rows = matrix_of(config, tensors).encoding.rows(lambda info: tensors[info.name], 0, 32)
        read.append(torch.from_numpy(rows.numbers()))
    assert (read[0] != read[1]).any()
