"""The noise of a number format is that of the plan, which the interpreter runs word for word."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from ingot.artifact.formats import Storage
from ingot.artifact.golden import Tolerance
from ingot.artifact.golden_error import GoldenDifference
from ingot.compiler.golden import drawn, loosest, tolerance
from ingot.compiler.rounding import Rounded, Roundings, rounded_logits, roundings_of
from ingot.compiler.verify import PlanChecker, RandomStored, step_within
from ingot.passes.verification import relative_error
from ingot.targets.cpu.kind import KIND as CPU
from ingot.targets.cuda.kind import KIND as CUDA
from tests.compiler.tiny import tiny
from tests.support.core import core

torch.set_num_threads(1)

VARIANTS = {
    "bfloat16": {"dtype": "bfloat16"},
    "int8 cache": {"dtype": "bfloat16", "int8_states": True},
    "float16": {"dtype": "float16"},
    "int8": {"dtype": "bfloat16", "storage": Storage(8, 32)},
    "int4": {"storage": Storage(4, 32)},
    "int8 cache beside float32": {"int8_states": True},
    "experts": {"dtype": "bfloat16", "experts": True},
}


@pytest.mark.cases(core=2, thorough=3)
@pytest.mark.parametrize("kind", core(CPU, further=[CUDA]), ids=["cpu", "cuda"])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_noise_is_that_of_the_plan(name: str, kind: object) -> None:
    made = tiny(**VARIANTS[name])
    plan = kind.rewrite(made.plan)  # type: ignore[attr-defined]
    checker, step = PlanChecker(made.reference), step_within(made.plan.limits)
    stored = RandomStored(checker.random, plan)
    (exact, rounded), _ = checker.rounded(stored, [roundings_of(plan)], *step)
    noise, apart = (relative_error(x, exact) for x in (rounded, checker.logits(plan, *step)))
    assert 1e-4 < noise < 5e-2
    # They round alike, so they are much nearer to each other than to what is exact.
    assert relative_error(checker.logits(plan, *step), rounded) < 0.3 * noise
    assert apart == pytest.approx(noise, rel=0.1)


def test_the_exact_run_is_the_reference_whatever_runs_beside_it() -> None:
    made = tiny("bfloat16")
    checker = PlanChecker(made.reference)
    read, prompts = checker.random.read, [[1, 2, 3], [4]]
    alone = rounded_logits(made.reference, read, prompts, [])
    way = Rounded(roundings_of(made.plan), read)
    exact, one, other = rounded_logits(made.reference, read, prompts, [way, way])
    for a, b, c, d in zip(alone[0], exact, one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        assert torch.equal(c, d) and not torch.equal(a, c)


def test_draws_differ_in_their_last_digits_and_are_the_same_every_time() -> None:
    """In float32, where no rounding falls the other way, draws are as near as sums are."""
    made = tiny()
    read = PlanChecker(made.reference).random.read
    ways = drawn([Rounded(Roundings({}, {}), read)])
    draws, again = (
        [torch.cat(rows) for rows in rounded_logits(made.reference, read, [[1, 2, 3], [4]], ways)]
        for _ in range(2)
    )
    for one, other in zip(draws, again, strict=True):
        assert torch.equal(one, other)
    for one, other in combinations(draws, 2):
        assert 0 < relative_error(one, other) < 1e-5


def test_the_draw_that_is_furthest_off_counts() -> None:
    draws = [GoldenDifference(0.2, 1.0, 0.02), GoldenDifference(0.1, 2.0, 0.01)]
    allowed = loosest(map(tolerance, draws))
    assert allowed == Tolerance(noise=0.2, mean=0.3, largest=6.0, kl=0.045)


def test_float32_loses_the_last_digits_of_sums() -> None:
    made = tiny()
    checker, step = PlanChecker(made.reference), step_within(made.plan.limits)
    stored = RandomStored(checker.random, made.plan)
    (exact, rounded), _ = checker.rounded(stored, [roundings_of(made.plan)], *step)
    assert 2.0**-24 < relative_error(rounded, exact) < 1e-5
