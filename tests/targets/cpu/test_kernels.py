"""Every kernel against the reference of its op, at every level of instructions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ingot.ops.registry import OPS
from tests.targets.cpu.cases import all_cases, unit
from tests.targets.cpu.native import TARGETS
from tests.targets.cpu.units import make_step

MOST_ROWS = 70


@st.composite
def sequences(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Up to four sequences of (rows, context), 1 to 70 rows in all."""
    count = draw(st.integers(1, 4))
    rows = [draw(st.integers(1, MOST_ROWS // count)) for _ in range(count)]
    return [(n, n + draw(st.integers(0, 150))) for n in rows]


def tolerance(name: str, result: Tensor) -> tuple[float, float]:
    op = next(c.op for c in all_cases() if name.startswith(c.name + "."))
    bound = OPS[op].tolerance[result.dtype]
    return bound.rtol, bound.atol


@pytest.mark.parametrize("target", TARGETS)
@settings(deadline=None, max_examples=5, derandomize=True, database=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(sequences(), st.integers(1, 3), st.integers(0, 2**31))
@example([(1, 1)], 1, 0)
@example([(130, 300)], 2, 1)  # more rows than a block of a linear
@example([(1, 16), (1, 17), (16, 64), (17, 65)], 3, 2)  # edges of pages and key tiles
def test_results_are_those_of_the_references(
    target: str, sizes: list[tuple[int, int]], threads: int, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    step = make_step(rng, sizes)
    values = unit(target).draw(rng, step)
    got, expected = unit(target).run(values, step, threads), unit(target).expected(values, step)
    assert got.keys() == expected.keys()
    for name, result in expected.items():
        rtol, atol = tolerance(name, result)
        torch.testing.assert_close(
            got[name], result, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )
