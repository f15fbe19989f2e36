"""The integers of an artifact as the file has them."""

from __future__ import annotations

import pytest
import torch

from ingot.artifact.formats import Storage
from ingot.compiler.quantization.search import quantize_rows
from ingot.onnx.integers import Integers, dequantized, fits
from tests.support.samples import weight


@pytest.mark.parametrize("columns", [256, 300, 37, 1])
@pytest.mark.parametrize("storage", [Storage(8, 64), Storage(4, 32), Storage(4, 128)])
def test_a_file_has_the_numbers_of_the_artifact(storage: Storage, columns: int) -> None:
    form = storage.of(columns)
    matrix = quantize_rows(weight(torch.Generator().manual_seed(0), 6, columns), form)
    stored = Integers((6, columns), form, torch.float32, lambda: matrix)
    integers, scales = (stored.makes[name]() for name in ("integers", "scales"))
    assert integers.shape == stored.integers.shape and integers.dtype == torch.uint8
    assert scales.shape == stored.scales.shape
    got = dequantized(integers.flatten(1), scales, form.bits, form.group)
    torch.testing.assert_close(got[:, :columns], matrix.dequantize(), rtol=1e-6, atol=0)
    assert not got[:, columns:].any(), "zeros fill up the last group"


def test_only_groups_that_the_operator_takes_fit() -> None:
    assert fits(256, Storage(4, 32).of(256))
    assert not fits(96, Storage(8, 0).of(96))  # one scale for a row of 96
    assert fits(80, Storage(8, 64).of(80))
