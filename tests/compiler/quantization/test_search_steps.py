"""The steps of the search, each against the same thing written plainly."""

from __future__ import annotations

import math

import pytest
import torch

from ingot.compiler.quantization import search
from ingot.compiler.quantization.search import (
    best_scales,
    block_scales,
    multipliers_of,
    quantize_rows,
    round_to,
)
from ingot.compiler.torch_threads import torch_threads
from ingot.errors import CheckpointError
from ingot.ops.scaled import stack
from tests.compiler.quantization.integers import integers


def sample(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("bits", "low", "high"), [(8, -127, 127), (4, -8, 7)])
def test_rounding_goes_to_the_nearest_and_stops_at_the_ends(bits: int, low: int, high: int) -> None:
    units = torch.tensor([0.0, 0.4, 0.6, -0.6, 1.5, 2.5, -3.5, 6.6, 7.6, -8.6, 500.0, -500.0])
    expected = [min(max(round(u), low), high) for u in units.tolist()]
    for scale in (1.0, -1.0, 0.25, 1024.0):
        got = round_to(units[:, None] * scale, torch.tensor([scale]), bits)
        assert got[:, 0].tolist() == expected
    assert not round_to(units[:, None], torch.zeros(1), bits).any()


def test_multipliers_are_whole_and_only_nothing_is_zero() -> None:
    units = [0.0, 1e-6, -1e-6, 0.49, 0.5, -0.5, 0.6, 1.4, 1.6, -1.6, 7.4, 7.6, 9.0, -8.4, -9.0]
    expected = [0, 1, -1, 1, 1, -1, 1, 1, 2, -2, 7, 7, 7, -8, -8]
    for block in (1.0, -0.5, 64.0):
        got = multipliers_of(torch.tensor(units) * block, torch.full((len(units),), block))
        assert got.tolist() == expected
    assert multipliers_of(torch.ones(2), torch.zeros(2)).tolist() == [0, 0]


def loss(weights: list[float], scale: float, low: int, high: int) -> float:
    if scale == 0:
        return sum(w * w for w in weights)
    rounded = (min(max(round(w / scale), low), high) for w in weights)
    return sum((w - scale * q) ** 2 for w, q in zip(weights, rounded, strict=True))


@pytest.mark.parametrize(("bits", "low", "high"), [(8, -127, 127), (4, -8, 7)])
def test_no_start_is_better_than_the_scale_that_is_taken(bits: int, low: int, high: int) -> None:
    """A start is the largest magnitude at one of the levels; it is fitted to the integers."""
    groups = torch.cat([sample(32, 30), sample(32, 30).exp(), -sample(32, 30).exp()], 1)
    for group, scale in zip(
        groups.T.tolist(), best_scales(groups, bits=bits).tolist(), strict=True
    ):
        extreme, least = max(group, key=abs), math.inf
        for level in search.STARTS[bits]:
            q = [min(max(round(w * level / extreme), low), high) for w in group]
            fitted = sum(w * x for w, x in zip(group, q, strict=True)) / sum(x * x for x in q)
            kept = sum((w - fitted * x) ** 2 for w, x in zip(group, q, strict=True))
            least = min(least, kept)
        # Rounding the scale to float16 costs a little.
        assert loss(group, scale, low, high) <= 1.02 * least
    assert search.STARTS[8] == (*range(127, 111, -1),)
    assert search.STARTS[4] == (-9, -8.5, -8, -7.5, -7, -6.5)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_single_weight_is_kept_whatever_its_sign(bits: int) -> None:
    for weight in (3.0, -3.0):
        groups = torch.zeros(32, 1)
        groups[5] = weight
        scale = best_scales(groups, bits=bits)
        assert float(round_to(groups, scale, bits)[5] * scale) == pytest.approx(weight, rel=1e-3)
        # What outweighs all others decides, even one against many.
        groups[6:20] = -0.01 * weight
        scale = best_scales(groups, bits=bits)
        assert float(round_to(groups, scale, bits)[5] * scale) == pytest.approx(weight, rel=0.02)


def test_the_scale_of_a_block_is_the_one_from_which_its_groups_deviate_least() -> None:
    """Weighted by their energies, which differ by far."""
    groups = sample(32, 40 * 4) * sample(40 * 4, seed=1).exp()
    groups[:, 7] = 0
    own = best_scales(groups, bits=4)
    got = block_scales(groups, own, 4)
    assert torch.equal(got, got.half().float())
    for block, scale in enumerate(got.tolist()):
        part = slice(4 * block, 4 * block + 4)
        wanted = own[part].double()
        energies = groups[:, part].double().square().sum(0)

        def off(scale: float, wanted=wanted, energies=energies) -> float:
            units = wanted / scale
            levels = torch.where(units.abs() <= 0.5, units.sign(), units.round().clamp(-8, 7))
            deviation = torch.where(wanted == 0, 0.0, levels * scale / wanted - 1)
            return float((deviation.square() * energies).sum())

        extreme = float(wanted[wanted.abs().argmax()])
        tried = [float(torch.tensor(extreme / level).half()) for level in search.LEVELS]
        assert scale in tried and off(scale) <= 1.0001 * min(map(off, tried))


@pytest.mark.parametrize(("bits", "level"), [(8, 127), (4, -8)])
@pytest.mark.parametrize("sign", [1, -1])
def test_scales_go_as_far_as_float16(bits: int, level: int, sign: int) -> None:
    row = torch.zeros(1, 32)
    row[0, 3] = sign * 60000.0 * level
    assert quantize_rows(row, integers(bits, 32)).scales.abs().max() <= 65504
    row[0, 3] = sign * 70000.0 * level
    with pytest.raises(CheckpointError) as caught:
        quantize_rows(row, integers(bits, 32))
    assert f"weights up to {abs(70000 * level):.3g} need" in caught.value.found


def test_torch_has_its_threads_back_whatever_happens() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with torch_threads(1):
            assert torch.get_num_threads() == 1
        with pytest.raises(CheckpointError):
            quantize_rows(torch.full((1, 32), 1e9), integers(8, 32))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("form", [integers(8, 32), integers(8, 256), integers(4, 32, 128)], ids=str)
@pytest.mark.parametrize("rows_at_once", [1, 3, 10, 0.5])
def test_rows_that_are_taken_together_are_those_alone(
    form, rows_at_once: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whole numbers, so that no sum depends on its order.
    weight = (sample(10, 256) * 40).round().clamp(-100, 100)
    alone = stack([quantize_rows(row, form) for row in weight.split(1)])
    monkeypatch.setattr(search, "AT_ONCE", int(256 * rows_at_once))
    together = quantize_rows(weight, form)
    assert torch.equal(together.values, alone.values)
    assert torch.equal(together.scales, alone.scales)
    assert torch.equal(together.dequantize(), alone.dequantize())
