"""Integers with scales: rounding to them, rows of them, and products."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ingot.artifact.formats import rounded_rows
from ingot.ops import OPS
from ingot.ops.linear import EXACT_IN_FLOAT32
from ingot.ops.scaled import (
    SMALLEST,
    Scaled,
    from_planes,
    round_to,
    round_to_int8,
    stack,
    to_planes,
)
from tests.support import samples


def large_int8(*shape: int, seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(100, 128, shape, generator=rng, dtype=torch.int8)


def with_multipliers(rows: int, seed: int) -> Scaled:
    """Groups of 2 in blocks of 4."""
    rng = torch.Generator().manual_seed(seed)
    multipliers = torch.randint(-8, 8, (rows, 4), generator=rng, dtype=torch.int8)
    values = torch.randint(-8, 8, (rows, 8), generator=rng, dtype=torch.int8)
    return Scaled(values, multipliers, torch.rand(rows, 2, generator=rng))


@pytest.mark.parametrize("block", [4, 32])
def test_rounding_is_numpys_in_single_precision(block):
    """Where a value lies halfway between integers, too, and a rounding more would show."""
    x = torch.rand(4096, 64, generator=torch.Generator().manual_seed(3))
    x[:, 1:block] = x[:, :1] * ((torch.arange(block - 1) * 4 + 0.5) / 127)
    blocks = x.numpy().reshape(4096, -1, block)
    largest = np.abs(blocks).max(-1, keepdims=True)
    values = np.rint(blocks * (np.float32(127) / largest)).reshape(x.shape)
    got = round_to_int8(x, block)
    assert got.block == block and got.multipliers is None
    assert np.array_equal(got.values.numpy(), values)
    assert np.array_equal(got.scales.numpy(), (largest / np.float32(127))[..., 0])


@given(st.integers(1, 70), st.sampled_from([1, 4, 32, 64]))
def test_the_last_block_has_the_columns_that_are_left(columns: int, block: int) -> None:
    x = torch.randn(3, columns, generator=torch.Generator().manual_seed(columns))
    got = round_to_int8(x, block)
    apart = [round_to_int8(part, part.shape[-1]) for part in x.split(block, -1)]
    assert torch.equal(got.values, torch.cat([each.values for each in apart], -1))
    assert torch.equal(got.scales, torch.cat([each.scales for each in apart], -1))
    assert torch.equal(got.dequantize(), torch.cat([each.dequantize() for each in apart], -1))
    weight = round_to_int8(x.flip(0), block)
    product = OPS["linear"].reference(got, weight)
    expected = sum(
        OPS["linear"].reference(one, round_to_int8(part, part.shape[-1]))
        for one, part in zip(apart, x.flip(0).split(block, -1), strict=True)
    )
    assert torch.equal(product, expected)


@given(st.integers(1, 30))
def test_the_last_group_has_the_columns_that_are_left(columns: int) -> None:
    whole = with_multipliers(3, seed=columns)
    values = whole.values.repeat(1, 4)[:, :columns]
    multipliers = whole.multipliers.repeat(1, 4)[:, : -(-columns // 2)]
    scales = whole.scales.half().float().repeat(1, 4)[:, : -(-columns // 4)]
    found = Scaled(values, multipliers, scales, block=4, group=2)
    expected = [
        [int(values[r, k]) * int(multipliers[r, k // 2]) * float(scales[r, k // 4])
         for k in range(columns)]
        for r in range(3)
    ]  # fmt: skip
    assert torch.equal(found.dequantize(), torch.tensor(expected))
    assert torch.equal(found[1:].dequantize(), found.dequantize()[1:])
    assert torch.equal(stack([found[:1], found[1:]]).dequantize(), found.dequantize())


def test_a_group_has_a_multiplier_and_a_zero_of_its_own() -> None:
    """Groups of 4 in blocks of 8, the last of which has 3 columns of 11."""
    values = torch.arange(-8, 3, dtype=torch.int8)[None]
    multipliers = torch.tensor([[1, 16, 3]], dtype=torch.int8)
    zeros = torch.tensor([[-5, 100, 7]], dtype=torch.int8)
    scales = torch.tensor([[0.5, 2.0]])
    matrix = Scaled(values, multipliers, scales, zeros, block=8, group=4)
    whole = [v * m - z for v, m, z in zip(
        values[0].tolist(), [1] * 4 + [16] * 4 + [3] * 3, [-5] * 4 + [100] * 4 + [7] * 3,
        strict=True,
    )]  # fmt: skip
    assert matrix.integers().tolist() == [whole]
    expected = [v * s for v, s in zip(whole, [0.5] * 8 + [2.0] * 3, strict=True)]
    assert matrix.dequantize().tolist() == [expected]


def test_scales_that_are_not_of_the_blocks_are_noticed() -> None:
    with pytest.raises(AssertionError, match="9 columns, 2 blocks"):
        Scaled(torch.zeros(1, 9, dtype=torch.int8), None, torch.zeros(1, 2), block=4)


def test_the_smallest_block_that_counts_is_not_zero():
    rows = torch.tensor([[SMALLEST, -SMALLEST / 2], [SMALLEST * 0.99, 0.0]])
    assert round_to_int8(rows, 2).values.tolist() == [[127, -64], [0, 0]]
    assert torch.equal(round_to_int8(rows, 2).scales, rows.new_tensor([[SMALLEST], [0.0]]) / 127)


def test_narrow_numbers_are_rounded_as_the_wide_ones_that_they_are():
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(4)).bfloat16()
    narrow, wide = round_to_int8(x, 16), round_to_int8(x.float(), 16)
    assert torch.equal(narrow.values, wide.values) and torch.equal(narrow.scales, wide.scales)
    assert narrow.scales.dtype == torch.float32


def test_a_row_takes_its_multipliers_and_scales_along():
    whole = with_multipliers(5, seed=1)
    for index in (slice(1, 3), torch.tensor([4, 0, 0]), 2):
        assert torch.equal(whole[index].dequantize(), whole.dequantize()[index])
    plain = round_to_int8(whole.dequantize(), 4)
    assert torch.equal(plain[1:4].dequantize(), plain.dequantize()[1:4])


def test_rows_are_written_with_their_scales():
    rng = torch.Generator().manual_seed(2)
    cache = round_to_int8(torch.ones(5, 8), 4)
    rows = round_to_int8(torch.randn(2, 8, generator=rng), 4)
    cache[torch.tensor([3, 1])] = rows
    assert torch.equal(cache.dequantize()[[3, 1]], rows.dequantize())
    assert torch.equal(cache.dequantize()[[0, 2, 4]], torch.ones(3, 8))


def test_a_stack_is_the_rows_of_its_parts():
    parts = [with_multipliers(rows, seed) for seed, rows in enumerate((3, 1, 2))]
    assert torch.equal(stack(parts).dequantize(), torch.cat([p.dequantize() for p in parts]))
    plain = [round_to_int8(p.dequantize(), 8) for p in parts]
    assert torch.equal(stack(plain).dequantize(), torch.cat([p.dequantize() for p in plain]))
    assert stack(plain).multipliers is None


@pytest.mark.parametrize("block", [32, EXACT_IN_FLOAT32, 4 * EXACT_IN_FLOAT32])
def test_products_of_integers_are_exact_before_they_are_scaled(block):
    """Of long blocks, too: their sums need more bits than a float32 has."""
    width, rng = 4 * EXACT_IN_FLOAT32, torch.Generator().manual_seed(6)
    x = Scaled(large_int8(3, width, seed=0), None, torch.rand(3, width // block, generator=rng))
    w = Scaled(
        large_int8(5, width, seed=1), None, torch.rand(5, width // block, generator=rng).half()
    )
    expected = np.zeros((3, 5), np.float32)
    for i in range(width // block):
        part = slice(i * block, (i + 1) * block)
        dots = x.values.numpy()[:, part].astype(np.int64) @ w.values.numpy()[:, part].T
        scales = np.outer(x.scales.numpy()[:, i], w.scales.float().numpy()[:, i])
        expected += dots.astype(np.float32) * scales
    got = OPS["linear"].reference(Scaled(x.values[None], None, x.scales[None]), w)
    assert np.array_equal(got[0].numpy(), expected)


def test_a_cache_has_a_scale_for_every_block_of_a_head():
    k, v = torch.randn(2, 1, 3, 2, 8, generator=torch.Generator().manual_seed(5))
    caches = [
        Scaled(torch.zeros(2, 2, 4, 8, dtype=torch.int8), None, torch.zeros(2, 2, 4, 2))
        for _ in range(2)
    ]
    OPS["kv_write"].reference(k, v, *caches, torch.tensor([5, -1, 2]))
    for x, cache in zip((k, v), caches, strict=True):
        rounded = round_to_int8(x[0], 4).dequantize()
        assert torch.equal(cache.dequantize()[1, :, 1], rounded[0])
        assert torch.equal(cache.dequantize()[0, :, 2], rounded[2])


def test_int16_is_two_hundred_and_fifty_six_times_as_fine() -> None:
    x = samples.normal(torch.Generator().manual_seed(5), 3, 70)
    coarse, fine = round_to_int8(x, 32), round_to(x, rounded_rows(32, "int16"))
    assert fine.values.dtype == torch.int16 and int(fine.values.abs().max()) == 127 * 256
    step = fine.scales.repeat_interleave(32, -1)[:, :70]
    assert ((fine.dequantize() - x).abs() <= step * 0.501).all()
    assert torch.allclose(coarse.scales, fine.scales * 256)


def test_planes_hold_every_int16_that_rounding_makes() -> None:
    values = torch.arange(-127 * 256, 127 * 256 + 1, dtype=torch.int16).reshape(5, -1)
    planes = to_planes(values)
    assert planes.shape == (5, 2, values.shape[1]) and int(planes.min()) == -127
    assert torch.equal(from_planes(planes), values)


def test_products_of_int16_are_those_of_the_numbers() -> None:
    rng = torch.Generator().manual_seed(6)
    x, w = samples.normal(rng, 4, 300), samples.normal(rng, 7, 300)
    rounded, weight = round_to(x, rounded_rows(128, "int16")), round_to_int8(w, 128)
    want = rounded.dequantize().double() @ weight.dequantize().double().T
    got = OPS["linear"].reference(rounded, weight)
    assert torch.allclose(got.double(), want, rtol=0, atol=1e-5)
