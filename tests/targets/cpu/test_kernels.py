"""Every kernel against the references of its primitives, at every level of instructions."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ingot.compiler.interpret import Value
from ingot.ops import OPS
from ingot.targets.cpu.work import CpuWork
from tests.targets.cpu.cases import MORE, at_levels, every_program, unit
from tests.targets.cpu.steps import Step
from tests.targets.cpu.units import Unit, parts_of

MOST_ROWS = 70
EXACT = {
    "cast",
    "concat",
    "embedding",
    "kv_write",
    "reorder",
    "select_rows",
}  # they copy, or round once


def tolerance(kernel: CpuWork, dtype: torch.dtype) -> tuple[float, float]:
    """The loosest of its primitives."""
    ops = {i.op for i in kernel.members}
    if ops <= EXACT:
        return 0.0, 0.0
    bounds = [OPS[op].tolerance[dtype] for op in ops]
    return max(b.rtol for b in bounds), max(b.atol for b in bounds)


def check(
    unit: Unit, step: Step, before: Mapping[str, Value], after: Mapping[str, Value],
    only: Collection[str] = (),
) -> None:  # fmt: skip
    """The results of a step, of all kernels or of those with some names.

    Those of products and attention are taken relative to the largest of their row, since terms
    cancel.
    """
    for kernel in unit.work:
        if only and kernel.kernel not in only:
            continue
        wanted = unit.expected(kernel, step, before, after)
        assert wanted, kernel.kernel
        for name, result in wanted.items():
            for got, want in zip(parts_of(after[name]), parts_of(result), strict=True):
                close(name, kernel, got, want)


def close(name: str, kernel: CpuWork, got: Tensor, want: Tensor) -> None:
    rtol, atol = tolerance(kernel, want.dtype)
    got, want = got.float(), want.float()
    allowed = atol + rtol * want.abs()
    if kernel.attends or (kernel.is_product and not kernel.mutated):
        allowed = atol + rtol * want.abs().amax(-1, keepdim=True)
    good = ((got - want).abs() <= allowed) | (got == want) | (got.isnan() & want.isnan())
    assert good.all(), f"{name}: {(~good).sum()} differ, first {got[~good][:3]} {want[~good][:3]}"


@st.composite
def sequences(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Up to four sequences of (rows, context), 1 to 70 rows in all."""
    count = draw(st.integers(1, 4))
    rows = [draw(st.integers(1, MOST_ROWS // count)) for _ in range(count)]
    return [(n, n + draw(st.integers(0, 150))) for n in rows]


@every_program
@settings(deadline=None, max_examples=5, derandomize=True, database=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(sequences(), st.integers(1, 3), st.integers(0, 2**31))
@example([(1, 1)], 1, 0)
@example([(130, 300)], 2, 1)  # more rows than a block of a product
@example([(1, 16), (1, 17), (16, 64), (17, 65)], 3, 2)  # edges of pages and key tiles
@example([(5, 5)], 2, 3)  # fewer rows than a tile of a product; then a tile, and one more
@example([(6, 9)], 2, 4)
@example([(7, 7)], 2, 5)
def test_results_are_those_of_the_references(
    kind: str, target: str, sizes: list[tuple[int, int]], threads: int, seed: int
) -> None:
    kernels, rng = unit(kind, target), torch.Generator().manual_seed(seed)
    step = kernels.step(rng, sizes)
    values = kernels.draw(rng, step)
    check(kernels, step, values, kernels.run(values, step, threads))


def with_sinks(kernels: Unit, value: float) -> Unit:
    """The same kernels with that logit in all sinks."""
    names = [name for name in kernels.weights if name.endswith(".sinks")]
    assert names
    return kernels.with_weights({n: torch.full_like(kernels.weights[n], value) for n in names})


ATTENTION = ("paged_attention", "paged_attention_quantize")


@at_levels("f32", "bf16", f"{MORE}bf16")
def test_scores_that_rise_by_far_are_those_of_the_references(kind: str, target: str) -> None:
    """Weights beside an early key would overflow if they stayed relative to it."""
    kernels, rng = unit(kind, target), torch.Generator().manual_seed(0)
    step = kernels.step(rng, [(3, 300), (1, 200)])
    values = kernels.draw(rng, step)
    values = {name: x * 40 if name.endswith(".q") else x for name, x in values.items()}
    check(kernels, step, values, kernels.run(values, step), only=ATTENTION)


@pytest.mark.cases(core=4)
@at_levels("f32", "bf16", f"{MORE}bf16")
@pytest.mark.parametrize("value", [-math.inf, -1e30, -200.0, 60.0, 87.0, 126.0, 1e30, 3e38])
def test_sinks_of_any_size_are_those_of_the_references(
    kind: str, target: str, value: float
) -> None:
    """Far above all scores they leave zeros, and far below nothing changes."""
    kernels, rng = with_sinks(unit(kind, target), value), torch.Generator().manual_seed(0)
    step = kernels.step(rng, [(3, 40), (1, 90)])
    values = kernels.draw(rng, step)
    check(kernels, step, values, kernels.run(values, step), only=ATTENTION)


@at_levels("f32", "bf16", f"{MORE}bf16")
def test_sinks_that_are_left_out_are_noticed(kind: str, target: str) -> None:
    """The control: without weight they are none."""
    kernels, rng = unit(kind, target), torch.Generator().manual_seed(0)
    step = kernels.step(rng, [(3, 40), (1, 90)])
    values = kernels.draw(rng, step)
    after = with_sinks(kernels, -math.inf).run(values, step)
    with pytest.raises(AssertionError, match="-sinks"):
        check(kernels, step, values, after, only=ATTENTION)


NORMS = (
    *("rms_norm", "rms_norm_quantize", "add_rms_norm", "layer_norm", "layer_norm_heads"),
    *("rope_kv_write", "linear_rope_kv_write"),
)


@every_program
def test_norms_of_small_rows_are_those_of_the_references(kind: str, target: str) -> None:
    """Epsilon is all that counts in a row of zeros, and much of what counts in a tiny one."""
    kernels, rng = unit(kind, target), torch.Generator().manual_seed(0)
    step = kernels.step(rng, [(5, 5)])
    values = kernels.draw(rng, step)
    for buffer in kernels.given:
        x = values[buffer.name]
        x[0], x[1], x[2] = 0, x[1] * 1e-3, x[2] * 0.1
    check(kernels, step, values, kernels.run(values, step), only=NORMS)


@every_program
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so(kind: str, target: str, value: float) -> None:
    """Bounds, gates and products hide nothing, wherever in a row it stands."""
    kernels, rng = unit(kind, target), torch.Generator().manual_seed(0)
    step = kernels.step(rng, [(4, 4)])
    values = kernels.draw(rng, step)
    for buffer in kernels.given:
        rows = values[buffer.name].flatten(1)
        rows[1, 0] = rows[2, -1] = value
    after = kernels.run(values, step)
    caps = [
        k for k in kernels.work if k.kernel in ("soft_cap", "linear_soft_cap") and k.rows == "N"
    ]
    assert caps
    for kernel in caps:
        (name,) = kernel.writes
        given = next(after[n] for n in kernel.reads if kernels.plan.buffer(n).kind == "arena")
        lost = torch.stack([~p.float().isfinite().flatten(1) for p in parts_of(given)][-1:])[0]
        if kernel.kernel == "linear_soft_cap":
            lost = lost.any(-1, keepdim=True).expand(after[name].shape)
        assert torch.equal(~after[name].isfinite(), lost), name
    capped = [k for k in kernels.work if k.attends and k.member("paged_attention").attrs["softcap"]]
    for kernel in capped:
        rows = parts_of(after[kernel.writes[0]])[-1].float().flatten(1)
        assert not rows[1].isfinite().all() and not rows[2].isfinite().all(), kernel.origin
