"""The scale search: what it returns is the format, and loses less than plain rounding."""

from __future__ import annotations

import pytest
import torch

from ingot.compiler.quantization.search import dequantize, quantize_rows
from ingot.errors import CheckpointError

RANGES = {8: (-127, 127), 4: (-8, 7)}


def matrix(rows: int = 48, columns: int = 256) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * 0.02


def plain(weight: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """Round to nearest with the scale of the largest magnitude."""
    bound = RANGES[bits][1]
    groups = weight.view(len(weight), -1, group)
    scales = (groups.abs().amax(-1, keepdim=True) / bound).half().float()
    return ((groups / scales).round().clamp(-bound, bound) * scales).view(weight.shape)


def error(weight: torch.Tensor, got: torch.Tensor) -> float:
    return float((weight - got).square().sum())


@pytest.mark.parametrize("bits, group", [(8, 32), (8, 256), (4, 32), (4, 64), (4, 128)])
def test_values_and_scales_are_of_the_format(bits: int, group: int) -> None:
    values, scales = quantize_rows(matrix().bfloat16(), bits=bits, group=group)
    low, high = RANGES[bits]
    assert values.dtype == torch.int8 and values.shape == (48, 256)
    assert low <= int(values.min()) and int(values.max()) <= high
    assert scales.dtype == torch.float32 and scales.shape == (48, 256 // group)
    assert torch.equal(scales, scales.half().float())


@pytest.mark.parametrize(
    "bits, group, gain", [(8, 32, 0.9), (8, 256, 0.99), (4, 32, 0.75), (4, 128, 0.75)]
)
def test_search_loses_less_than_the_largest_magnitude(bits: int, group: int, gain: float) -> None:
    weight = matrix()
    found = dequantize(*quantize_rows(weight, bits=bits, group=group))
    assert error(weight, found) <= gain * error(weight, plain(weight, bits, group))


def test_every_group_is_at_least_as_good_as_plain() -> None:
    weight = matrix()
    found = dequantize(*quantize_rows(weight, bits=4, group=32))
    errors = [(weight - got).view(-1, 32).square().sum(-1) for got in (found, plain(weight, 4, 32))]
    assert float((errors[0] > 1.02 * errors[1]).float().mean()) < 0.01


@pytest.mark.parametrize("bits", [8, 4])
def test_a_group_of_zeros_and_one_of_an_outlier(bits: int) -> None:
    weight = matrix(2, 64)
    weight[0, :32] = 0
    weight[1, 5] = -1000.0
    values, scales = quantize_rows(weight, bits=bits, group=32)
    assert scales[0, 0] == 0 and not values[0, :32].any()
    got = dequantize(values, scales)
    assert got[1, 5] == pytest.approx(-1000.0, rel=1e-3)
    assert not got.isnan().any()


def test_tiny_weights_round_to_zero_and_huge_ones_are_refused() -> None:
    values, scales = quantize_rows(torch.full((1, 32), 1e-12), bits=4, group=32)
    assert not scales.any() and not values.any()
    with pytest.raises(CheckpointError, match="float16"):
        quantize_rows(torch.full((1, 32), 1e7), bits=4, group=32)


def test_pieces_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = quantize_rows(matrix(), bits=4, group=32)
    halves = [quantize_rows(part, bits=4, group=32) for part in matrix().split(16)]
    for index in range(2):
        assert torch.equal(whole[index], torch.cat([half[index] for half in halves]))


def test_threads_of_torch_are_as_they_were() -> None:
    before = torch.get_num_threads()
    quantize_rows(matrix(), bits=8, group=32)
    assert torch.get_num_threads() == before
