"""Quantized kernels against the references of their ops, and bit for bit, at every level."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ingot.ops.registry import OPS
from tests.targets.cpu.quantized import (
    MATRICES,
    SMALLEST_VOCABULARY,
    TARGETS,
    Values,
    activations,
    expected,
    unit,
    weights,
)

ROWS = (1, 2, 5, 6, 7, 13, 64, 70, 130)  # fewer than a tile, tiles and a rest, more than a block

every_level = pytest.mark.parametrize("target", TARGETS)


def drawn(rows: int, seed: int = 0) -> tuple[Values, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, SMALLEST_VOCABULARY, (rows,), generator=rng)
    return {**weights(rng), **activations(rng, rows)}, tokens


def check(got: Values, wanted: Values) -> None:
    """int8 values, scales and looked-up rows exactly; sums within the op's tolerance, relative to
    the largest of their row, since terms cancel. What a product turns, stores and rounds has the
    bits that it has when other ops do so."""
    bound = OPS["quantized_linear"].tolerance[torch.float32]
    for name in [name for name in got if ".fused." in name]:
        assert torch.equal(got.pop(name), got.pop(name.replace("fused", "again"))), name
    assert got.keys() == wanted.keys()
    for name, result in wanted.items():
        if name.endswith((".out", ".gated")):
            largest = result.abs().amax(-1, keepdim=True)
            assert ((got[name] - result).abs() <= bound.atol + bound.rtol * largest).all(), name
        else:
            assert torch.equal(got[name], result), name


@every_level
@pytest.mark.parametrize("rows", ROWS)
def test_results_are_those_of_the_references(target: str, rows: int) -> None:
    values, tokens = drawn(rows, seed=rows)
    check(unit(target).run(values, tokens, threads=1 + rows % 3), expected(values, tokens))


def extremes(rows: int) -> Values:
    """Every product is as large as the formats allow, of one sign or of both in turn."""
    values: Values = {}
    for m in MATRICES:
        lowest, highest = (-8, 7) if m.bits == 4 else (-127, 127)
        weight = torch.full((m.outputs, m.inputs), highest, dtype=torch.int8)
        weight[1::2] = lowest
        scales = torch.full((m.outputs, m.inputs // m.block), 2.0**-24)  # subnormal in float16
        scales[::3] = 0.5
        if m.spans.has_multipliers:
            multipliers = torch.full((m.outputs, m.inputs // m.group), -8, dtype=torch.int8)
            multipliers[::5] = 7
            values[f"{m.name}.weight_multipliers"] = multipliers
        x = torch.ones(1, rows, m.inputs)
        x[:, 1::3] = -1e30
        x[:, 2::3, ::2] = 1e-20
        values |= {f"{m.name}.weight": weight, f"{m.name}.weight_scales": scales}
        values |= {f"{m.name}.x": x}
        if m.bias:
            values[f"{m.name}.residual"] = torch.ones(1, rows, m.outputs)
            values[f"{m.name}.bias"] = torch.zeros(m.outputs)
    return values


@every_level
def test_nothing_saturates(target: str) -> None:
    tokens = torch.arange(8)
    values = extremes(8)
    got, wanted = unit(target).run(values, tokens), expected(values, tokens)
    check(without_gates(got), without_gates(wanted))


def without_gates(values: Values) -> Values:
    """Without products of two sums, of which float32 holds no more than some."""
    gates = (".gated", ".fused.", ".again.")
    return {n: x for n, x in values.items() if not any(gate in n for gate in gates)}


@every_level
def test_groups_of_zeros_and_of_tiny_values_count_as_zero(target: str) -> None:
    values, tokens = drawn(3)
    for m in MATRICES:
        x = values[f"{m.name}.x"]
        x[:, 0] = 0
        x[:, 1, : m.block] = 2.0**-101
        x[:, 1, 0] = -1e-44
    got = unit(target).run(values, tokens)
    check(got, expected(values, tokens))
    for m in MATRICES:
        assert not got[f"{m.name}.scales"][:, 1, 0].any()
        assert not got[f"{m.name}.values"][:, 1, : m.block].any()


@every_level
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_so(target: str, value: float) -> None:
    values, tokens = drawn(3)
    for m in MATRICES:
        values[f"{m.name}.x"][:, 1, 0] = value
        values[f"{m.name}.x"][:, 2] = value
    got = unit(target).run(values, tokens)
    for m in MATRICES:
        finite = got[f"{m.name}.scales"].isfinite()
        assert finite[:, 0].all() and finite[:, 1, 1:].all()
        assert not finite[:, 1, 0].any() and not finite[:, 2].any()
        assert not got[f"{m.name}.out"][:, 1:].isfinite().any()
        assert got[f"{m.name}.out"][:, 0].isfinite().all()


@pytest.mark.deterministic
@every_level
def test_a_row_alone_is_the_row_in_a_batch(target: str) -> None:
    values, tokens = drawn(100, seed=1)
    batch = unit(target).run(values, tokens, threads=1)
    for threads in (2, 5):
        again = unit(target).run(values, tokens, threads=threads)
        assert all(torch.equal(again[name], result) for name, result in batch.items())
    for rows in (slice(0, 1), slice(41, 42), slice(97, 100), slice(20, 99)):
        part = {
            n: v[:, rows] if n.endswith((".x", ".residual", ".table")) else v
            for n, v in values.items()
        }
        got = unit(target).run(part, tokens[rows], threads=2)
        for name, result in batch.items():
            if name.endswith("_cache"):
                continue  # where other rows are stored
            assert torch.equal(got[name], result[:, rows]), name


def test_a_wrong_weight_is_noticed() -> None:
    values, tokens = drawn(7)
    wanted = expected(values, tokens)
    name = MATRICES[0].name
    values[f"{name}.weight"][5, 17] ^= 1
    with pytest.raises(AssertionError, match=f"{name}.out"):
        check(unit(TARGETS[0]).run(values, tokens), wanted)
