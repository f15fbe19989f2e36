"""`--verify-passes` finds a lowering, a rewriting and a grouping that compute something else."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from ingot.artifact.formats import Storage
from ingot.artifact.plan import Instruction, Limits, Plan
from ingot.compiler.rounding import roundings_of
from ingot.compiler.verify import MOST, REGROUPED, PlanChecker, RandomStored, step_within
from ingot.errors import PassError
from ingot.passes.verification import relative_error
from ingot.targets.cpu.kind import KIND
from tests.compiler.tiny import Tiny, tiny

torch.set_num_threads(1)

VARIANTS = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "storage": Storage(8, 32)},
    "int4": {"storage": Storage(4, 32)},
    "int8 states": {"int8_states": True},
    "experts": {"experts": True},
    "experts in int4": {"dtype": "bfloat16", "storage": Storage(4, 32), "experts": True},
}
# Vocabularies with which rounding moves one row to another expert: in the first layer, and in the
# last, which has only the rows whose logits are wanted.
MOVED = (89, 98)


@pytest.fixture(scope="module", params=VARIANTS)
def made(request: pytest.FixtureRequest) -> Tiny:
    return tiny(**VARIANTS[request.param])


def changed(plan: Plan, op: str, **attrs: float) -> Plan:
    """The plan with other attributes in the first instruction of an op."""
    index = next(i for i, step in enumerate(plan.instructions) if step.op == op)
    step = plan.instructions[index]
    return with_instruction(plan, index, replace(step, attrs=step.attrs | attrs))


def with_instruction(plan: Plan, index: int, step: Instruction) -> Plan:
    steps = list(plan.instructions)
    steps[index] = step
    return replace(plan, instructions=tuple(steps))


def test_what_the_compiler_makes_is_accepted(made: Tiny) -> None:
    checker = PlanChecker(made.reference)
    checker.check_lowered(made.graph, made.plan)
    rewritten = KIND.rewrite(made.plan)
    placed = KIND.place(KIND.group(rewritten)[0])
    checker.check_target(KIND, made.plan, rewritten, placed)


@pytest.mark.parametrize("vocab_size", MOVED)
def test_rounding_may_move_a_row_to_another_expert(vocab_size: int) -> None:
    made = tiny("bfloat16", experts=True, vocab_size=vocab_size)
    checker, rewritten = PlanChecker(made.reference), KIND.rewrite(made.plan)
    placed = KIND.place(KIND.group(rewritten)[0])
    checker.check_lowered(made.graph, made.plan)
    checker.check_target(KIND, made.plan, rewritten, placed)
    for broken in ({"scale": 1.2}, {"top_k": 1}, {"normalise": False}):
        with pytest.raises(PassError, match="lower: moved the logits"):
            checker.check_lowered(made.graph, changed(made.plan, "route", **broken))
        other = changed(rewritten, "route", **broken)
        with pytest.raises(PassError, match="rewriting for cpu: moved the logits"):
            checker.check_target(KIND, made.plan, other, placed)
        with pytest.raises(PassError, match="grouping for cpu: moved the logits"):
            checker.check_target(KIND, made.plan, rewritten, changed(placed, "route", **broken))


@pytest.mark.parametrize("vocab_size", MOVED)
def test_a_row_that_has_moved_is_far_off(vocab_size: int) -> None:
    """Negative control: routers that are left alone make an error that no plan may have."""
    made = tiny("bfloat16", experts=True, vocab_size=vocab_size)
    checker, step = PlanChecker(made.reference), step_within(made.plan.limits)
    stored, ways = RandomStored(checker.random, made.plan), [roundings_of(made.plan)]
    (exact, rounded), routed = checker.rounded(stored, ways, *step)
    steady, alone = (checker.logits(made.plan, *step, given) for given in (routed, ()))
    assert relative_error(steady, exact) < MOST / 2 < MOST < relative_error(alone, exact)
    assert relative_error(rounded, exact) < MOST / 2


@pytest.mark.parametrize(
    "tight",
    [
        {"max_num_seqs": 1},
        {"max_num_batched_tokens": 8},
        {"max_num_batched_tokens": 4},
        {"max_logit_rows": 1},
        {"max_model_len": 2},
    ],
)
def test_plans_with_little_room_are_checked_within_it(tight: dict[str, int]) -> None:
    made = tiny()
    plan = replace(made.plan, limits=replace(made.plan.limits, **tight))
    rewritten = KIND.rewrite(plan)
    placed = KIND.place(KIND.group(rewritten)[0])
    checker = PlanChecker(made.reference)
    checker.check_target(KIND, plan, rewritten, placed)
    with pytest.raises(PassError, match="grouping for cpu: moved the logits"):
        checker.check_target(KIND, plan, rewritten, changed(placed, "rms_norm", eps=0.5))


def test_a_broken_lowering_is_found(made: Tiny) -> None:
    checker = PlanChecker(made.reference)
    view = next(b for b in made.plan.buffers if b.kind == "view" and b.offset)
    moved = replace(made.plan, buffers=tuple(
        replace(b, offset=0) if b is view else b for b in made.plan.buffers
    ))  # fmt: skip
    for broken in (moved, changed(made.plan, "paged_attention", scale=0.9)):
        with pytest.raises(PassError, match=r"lower: moved the logits by .*\(relative\)"):
            checker.check_lowered(made.graph, broken)


def test_stacked_weights_in_another_order_are_found(made: Tiny) -> None:
    def swapped(plan: Plan) -> Plan:
        return replace(plan, buffers=tuple(
            replace(b, sources=b.sources[::-1]) if len(b.sources) > 1 else b for b in plan.buffers
        ))  # fmt: skip

    with pytest.raises(PassError, match="lower: moved"):
        PlanChecker(made.reference).check_lowered(made.graph, swapped(made.plan))


def test_a_broken_rewriting_is_found(made: Tiny) -> None:
    checker, rewritten = PlanChecker(made.reference), KIND.rewrite(made.plan)
    broken = changed(rewritten, "rms_norm", eps=50.0)
    with pytest.raises(PassError, match="rewriting for cpu: moved the logits"):
        checker.check_target(KIND, made.plan, broken, broken)


def test_a_broken_grouping_is_found(made: Tiny) -> None:
    """Two temporaries in one place, though both are needed."""
    checker, rewritten = PlanChecker(made.reference), KIND.rewrite(made.plan)
    placed = KIND.place(KIND.group(rewritten)[0])
    offsets = {slot.name: 0 for slot in placed.memory.slots}
    broken = replace(placed, buffers=tuple(
        replace(b, offset=offsets.get(b.name, b.offset)) for b in placed.buffers
    ))  # fmt: skip
    with pytest.raises(
        PassError, match=r"grouping for cpu: moved the logits by .*\nAllowed: not by"
    ):
        checker.check_target(KIND, made.plan, rewritten, broken)


def test_a_grouping_that_moves_an_instruction_is_found(made: Tiny) -> None:
    checker, rewritten = PlanChecker(made.reference), KIND.rewrite(made.plan)
    placed = KIND.place(KIND.group(rewritten)[0])
    write = next(i for i, step in enumerate(placed.instructions) if not step.outputs)
    read = next(i for i, step in enumerate(placed.instructions) if step.op == "paged_attention")
    steps = list(placed.instructions)
    steps[write], steps[read] = steps[read], steps[write]
    with pytest.raises(PassError, match=r"grouping for cpu: moved the logits by nan"):
        checker.check_target(KIND, made.plan, rewritten, replace(placed, instructions=tuple(steps)))


@pytest.mark.cases(core=3)
@pytest.mark.parametrize("times", [0, 3])
def test_an_error_of_three_times_the_noise_is_found(
    made: Tiny, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the formats are; what roundings themselves do passes."""
    checker, rewritten = PlanChecker(made.reference), KIND.rewrite(made.plan)
    ways = [roundings_of(made.plan), roundings_of(rewritten)]
    stored, step = RandomStored(checker.random, made.plan), step_within(made.plan.limits)
    (_, before, after), _ = checker.rounded(stored, ways, *step)
    noise, honest = max(REGROUPED, relative_error(after, before)), checker.logits
    assert noise < MOST / 2

    def off(plan: Plan, *step: list[int]) -> torch.Tensor:
        logits = honest(plan, *step)
        error = torch.randn(logits.shape, generator=torch.Generator().manual_seed(3))
        share = times * noise * logits.norm() / error.norm()
        return logits + share * error if plan is rewritten else logits

    monkeypatch.setattr(checker, "logits", off)
    expected = pytest.raises(PassError, match="rewriting for cpu") if times else nullcontext()
    with expected:
        checker.check_target(KIND, made.plan, rewritten, replace(rewritten))


@pytest.mark.parametrize(
    ("limits", "lengths", "rows"),
    [
        # longest sequence, sequences, tokens of a step, rows with logits
        ((64, 4, 64, 8), [6, 3], [5, 0, 8, 7]),
        ((64, 2, 9, 4), [6, 3], [5, 0, 8, 7]),
        ((64, 1, 64, 8), [6], [5, 0]),
        ((64, 2, 8, 8), [6, 2], [5, 0, 7]),
        ((64, 2, 6, 8), [6], [5, 0]),
        ((64, 2, 1, 8), [1], [0]),
        ((4, 2, 64, 8), [4, 3], [5, 0]),
        ((2, 2, 64, 8), [2, 2], [0]),
        ((64, 2, 64, 3), [6, 3], [5, 0, 8]),
        ((64, 2, 64, 1), [6, 3], [5]),
    ],
)
def test_a_step_is_as_large_as_the_limits_allow(
    limits: tuple[int, int, int, int], lengths: list[int], rows: list[int]
) -> None:
    names = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_logit_rows")
    given = Limits(**dict(zip(names, limits, strict=True)), page_size=4)
    assert step_within(given) == (lengths, rows)


def test_what_is_allowed_is_said(made: Tiny) -> None:
    checker, broken = PlanChecker(made.reference), changed(made.plan, "rms_norm", eps=50.0)
    with pytest.raises(PassError) as caught:
        checker.check_lowered(made.graph, broken)
    assert re.fullmatch(r"Allowed: at most [1-9]e-0[2-6]\.", caught.value.hint)
