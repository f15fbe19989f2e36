"""The scale search: what it returns is the format, and loses less than plain rounding."""

from __future__ import annotations

import pytest
import torch

from ingot.artifact.formats import Format
from ingot.compiler.quantization.search import quantize_rows
from ingot.errors import CheckpointError
from ingot.ops.scaled import stack
from tests.compiler.quantization.integers import integers

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
    found = quantize_rows(matrix().bfloat16(), integers(bits, group))
    low, high = RANGES[bits]
    assert found.values.dtype == torch.int8 and found.values.shape == (48, 256)
    assert low <= int(found.values.min()) and int(found.values.max()) <= high
    assert found.scales.dtype == torch.float32 and found.scales.shape == (48, 256 // group)
    assert torch.equal(found.scales, found.scales.half().float())
    assert found.multipliers is None


@pytest.mark.parametrize(
    "form", [integers(4, 32, 128), integers(4, 64, 128), integers(4, 32, 64)], ids=str
)
def test_multipliers_cost_little(form: Format) -> None:
    """Of float16 scales for every group, 1.07 times the error; those of the whole block, 1.4."""
    weight = matrix(columns=1024)
    found = quantize_rows(weight, form)
    assert found.multipliers is not None and found.multipliers.dtype == torch.int8
    assert found.multipliers.shape == (48, 1024 // form.group)
    assert int(found.multipliers.min()) == -8 and int(found.multipliers.max()) <= 7
    assert found.scales.shape == (48, 1024 // form.block)
    assert torch.equal(found.scales, found.scales.half().float())
    finer = quantize_rows(weight, integers(4, form.group))
    assert error(weight, found.dequantize()) <= 1.09 * error(weight, finer.dequantize())


def test_a_group_far_below_its_block_keeps_what_it_can() -> None:
    weight = matrix(4, 128)
    weight[:, :32] *= 1e-4
    weight[0, 32:64] = 0
    found = quantize_rows(weight, integers(4, 32, 128))
    assert found.multipliers is not None
    assert found.multipliers[0, 1] == 0 and not found.values[0, 32:64].any()
    assert (found.multipliers[:, 0].abs() == 1).all()
    assert error(weight[:, :32], found.dequantize()[:, :32]) <= 1.01 * float(
        weight[:, :32].square().sum()
    )


@pytest.mark.parametrize(
    "bits, group, gain", [(8, 32, 0.9), (8, 256, 0.99), (4, 32, 0.75), (4, 128, 0.75)]
)
def test_search_loses_less_than_the_largest_magnitude(bits: int, group: int, gain: float) -> None:
    weight = matrix()
    found = quantize_rows(weight, integers(bits, group)).dequantize()
    assert error(weight, found) <= gain * error(weight, plain(weight, bits, group))


def test_every_group_is_at_least_as_good_as_plain() -> None:
    weight = matrix()
    found = quantize_rows(weight, integers(4, 32)).dequantize()
    errors = [(weight - got).view(-1, 32).square().sum(-1) for got in (found, plain(weight, 4, 32))]
    assert float((errors[0] > 1.02 * errors[1]).float().mean()) < 0.01


@pytest.mark.parametrize("bits", [8, 4])
def test_a_group_of_zeros_and_one_of_an_outlier(bits: int) -> None:
    weight = matrix(2, 64)
    weight[0, :32] = 0
    weight[1, 5] = -1000.0
    found = quantize_rows(weight, integers(bits, 32))
    assert found.scales[0, 0] == 0 and not found.values[0, :32].any()
    got = found.dequantize()
    assert got[1, 5] == pytest.approx(-1000.0, rel=1e-3)
    assert not got.isnan().any()


def test_tiny_weights_round_to_zero_and_huge_ones_are_refused() -> None:
    for form in (integers(4, 32), integers(4, 32, 128)):
        found = quantize_rows(torch.full((1, 128), 1e-12), form)
        assert not found.scales.any() and not found.values.any()
    with pytest.raises(CheckpointError, match="float16"):
        quantize_rows(torch.full((1, 32), 1e7), integers(4, 32))


@pytest.mark.parametrize("columns", [1, 31, 300, 330])
@pytest.mark.parametrize(
    "form", [integers(8, 128), integers(4, 32, 128), integers(4, 128)], ids=str
)
def test_the_last_block_is_searched_like_any_other(form: Format, columns: int) -> None:
    weight, block = matrix(columns=columns), form.block
    found, whole = quantize_rows(weight, form), columns // block * block
    assert found.shape == weight.shape and found.block == block and found.group == form.group
    if whole:
        before = quantize_rows(weight[:, :whole], form)
        assert torch.equal(found.values[:, :whole], before.values)
        assert torch.equal(found.scales[:, :-1], before.scales)
    last = torch.nn.functional.pad(weight[:, whole:], (0, whole + block - columns))
    alone = quantize_rows(last, form)
    assert torch.equal(found.values[:, whole:], alone.values[:, : columns - whole])
    assert torch.equal(found.dequantize()[:, whole:], alone.dequantize()[:, : columns - whole])
    assert error(weight, found.dequantize()) < 0.02 * float(weight.square().sum())


def test_pieces_of_any_size_give_the_same() -> None:
    form = integers(4, 32, 128)
    whole = quantize_rows(matrix(), form)
    halves = stack([quantize_rows(part, form) for part in matrix().split(16)])
    assert whole.multipliers is not None and halves.multipliers is not None
    assert torch.equal(whole.values, halves.values)
    assert torch.equal(whole.multipliers, halves.multipliers)
    assert torch.equal(whole.scales, halves.scales)


def test_threads_of_torch_are_as_they_were() -> None:
    before = torch.get_num_threads()
    quantize_rows(matrix(), integers(8, 32))
    assert torch.get_num_threads() == before
