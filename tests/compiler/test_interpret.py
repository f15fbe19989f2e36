"""The interpreter of plans: one arena of NaN, views, scales, and every value by instruction."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ingot.artifact.formats import Format, Storage, rounded_rows
from ingot.artifact.plan import Buffer, Instruction, Limits, MemoryPlan, Plan, Slot
from ingot.artifact.programs import STEP
from ingot.artifact.spec import Array, Spec
from ingot.compiler.interpret import interpret, new_states, plan_logits, plan_weights
from ingot.ops.scaled import Scaled, round_to_int8
from ingot.ops.steps import step_inputs
from ingot.passes.verification import DrawnWeights
from ingot.targets.cpu.kind import KIND
from tests.compiler.tiny import LIMITS as TINY_LIMITS
from tests.compiler.tiny import tiny
from tests.support.core import core

torch.set_num_threads(1)

WIDTH, ROWS, BOUND = 8, 3, 5
LIMITS = Limits(
    max_model_len=8, max_num_seqs=1, max_num_batched_tokens=BOUND, max_logit_rows=4, page_size=4
)
SIZE = 192  # bytes that a temporary of 5 rows of 8 floats takes


WIDE = Format("float32")


def arena(name: str, form: Format = WIDE, width: int = WIDTH) -> Buffer:
    return Buffer(name=name, format=form, shape=("N", width), kind="arena")


def step(op: str, out: str, **given: object) -> Instruction:
    inputs = {name: value for name, value in given.items() if isinstance(value, str)}
    attrs = {name: value for name, value in given.items() if not isinstance(value, str)}
    return Instruction(op=op, inputs=inputs, outputs={"out": out}, attrs=attrs, origin="")


# x = embedding; a = x * 2; b = a * 3; logits = a + b
STEPS = (
    step("embedding", "x", tokens="tokens", weight="table"),
    step("mul", "a", x="x", factor=2.0),
    step("mul", "b", x="a", factor=3.0),
    step("add", "logits", x="a", y="b"),
)
TABLE = torch.arange(80.0).view(10, WIDTH) + 1


def plan(
    offsets: dict[str, int] | None = None,
    steps: tuple[Instruction, ...] = STEPS,
    extra: tuple[Buffer, ...] = (),
) -> Plan:
    """The plan of those steps; temporaries that have an offset lie in the arena."""
    offsets = offsets or {}
    table = Buffer(name="table", format=Format("float32"), shape=(10, WIDTH), kind="weight")
    temporaries = [*map(arena, "xab"), *extra]
    slots = tuple(
        Slot(name=name, offset=offset, nbytes=SIZE, first_use=0, last_use=3)
        for name, offset in offsets.items()
    )
    logits = Array(name="logits", dtype="float32", shape=("N", WIDTH))
    return Plan(
        limits=LIMITS,
        spec=Spec(inputs=STEP.inputs_for("paged"), outputs=(logits,)),
        buffers=(table, *(replace(t, offset=offsets.get(t.name, t.offset)) for t in temporaries)),
        instructions=steps,
        memory=MemoryPlan(arena_bytes=8 * SIZE if offsets else 0, slots=slots),
    )


def inputs(tokens: list[int]) -> dict[str, Tensor]:
    return step_inputs([tokens], [0], [[0, 1]], 4)


TOKENS = [4, 0, 7]
X = TABLE[TOKENS]


def run(given: Plan) -> list[dict]:
    return interpret(given, lambda buffer: TABLE, inputs(TOKENS), {})


APART = {"x": 0, "a": SIZE, "b": 2 * SIZE}


@pytest.mark.parametrize(
    "offsets", [{}, APART, {"a": 0, "b": SIZE}, {"x": SIZE, "a": 0, "b": SIZE}]
)
def test_values_come_back_by_instruction_wherever_they_lie(offsets):
    """x is not read any more where b is written."""
    values = run(plan(offsets))
    assert [list(made) for made in values] == [["x"], ["a"], ["b"], ["logits"]]
    for made, expected in zip(values, (X, 2 * X, 6 * X, 8 * X), strict=True):
        (value,) = made.values()
        assert torch.equal(value, expected)


def test_values_are_copies():
    """What later instructions write over them does not show."""
    values = run(plan({"x": 0, "a": SIZE, "b": 0}))
    assert torch.equal(values[0]["x"], X) and torch.equal(values[2]["b"], 6 * X)


def test_a_value_that_is_written_over_while_it_is_needed_shows():
    """The control: b lies on a, which the sum still reads."""
    (logits,) = run(plan({"x": 0, "a": SIZE, "b": SIZE}))[-1].values()
    assert torch.equal(logits, 12 * X)
    (logits,) = run(plan({"x": 0, "a": SIZE, "b": SIZE + 4 * WIDTH}))[-1].values()
    assert not torch.equal(logits, 8 * X)


def test_a_value_that_is_read_before_it_is_written_is_not_a_number():
    first, second, third, last = STEPS
    (logits,) = run(plan(APART, (first, third, second, last)))[-1].values()
    assert logits.isnan().all()


def test_only_what_has_a_slot_lies_in_the_arena():
    swapped = (STEPS[0], STEPS[2], STEPS[1], STEPS[3])
    with pytest.raises(KeyError):
        run(plan({}, swapped))


def test_a_view_is_columns_of_rows():
    view = Buffer(
        name="half", format=Format("float32"), shape=("N", 4), kind="view", base="a",
        offset=2, row_stride=WIDTH,
    )  # fmt: skip
    steps = (*STEPS[:2], step("mul", "c", x="half", factor=1.0), *STEPS[2:])
    for offsets in ({}, APART, {"a": SIZE}):
        values = run(plan(offsets, steps, (view, arena("c", width=4))))
        assert torch.equal(values[2]["c"], 2 * X[:, 2:6])


def test_a_view_of_heads_keeps_their_order():
    view = Buffer(
        name="heads", format=Format("float32"), shape=("N", 2, 2), kind="view", base="a",
        offset=4, row_stride=WIDTH,
    )  # fmt: skip
    out = Buffer(name="c", format=Format("float32"), shape=("N", 2, 2), kind="arena")
    steps = (*STEPS[:2], step("mul", "c", x="heads", factor=1.0), *STEPS[2:])
    for offsets in ({}, APART):
        values = run(plan(offsets, steps, (view, out)))
        assert torch.equal(values[2]["c"], 2 * X[:, 4:].view(ROWS, 2, 2))


@pytest.mark.parametrize("offsets", [{}, APART | {"c": 4 * SIZE, "d": 6 * SIZE}])
def test_a_scaled_buffer_holds_integers_and_scales(offsets):
    weight = round_to_int8(TABLE, 4)
    steps = (
        *STEPS[:2],
        step("cast", "c", x="a"),
        step("linear", "d", x="c", weight="integers"),
        *STEPS[2:],
    )
    integers = Buffer(name="integers", format=rounded_rows(4), shape=(10, WIDTH), kind="weight")
    extra = (integers, arena("c", rounded_rows(4)), arena("d", width=10))
    made = interpret(
        plan(offsets, steps, extra),
        lambda buffer: weight if buffer.name == "integers" else TABLE,
        inputs(TOKENS),
        {},
    )
    rounded = made[2]["c"]
    expected = round_to_int8(2 * X, 4)
    assert isinstance(rounded, Scaled)
    assert torch.equal(rounded.values, expected.values)
    assert torch.equal(rounded.scales, expected.scales)
    assert torch.allclose(made[3]["d"], expected.dequantize() @ weight.dequantize().T)


def test_scales_lie_behind_the_numbers_of_the_largest_step():
    """The control: what is written where the scales must be destroys them."""
    steps = (*STEPS[:2], step("cast", "c", x="a"), STEPS[2], step("linear", "d", x="c", weight="w"))
    w = Buffer(name="w", format=rounded_rows(4), shape=(10, WIDTH), kind="weight")
    extra = (w, arena("c", rounded_rows(4)), arena("d", width=10))
    weight = round_to_int8(TABLE, 4)

    def last(offset: int) -> Tensor:
        offsets = {"x": 0, "a": SIZE, "c": 4 * SIZE, "b": offset, "d": 6 * SIZE}
        given = plan(offsets, steps, extra)
        return interpret(given, lambda b: weight if b.name == "w" else TABLE, inputs(TOKENS), {})[
            -1
        ]["d"]

    right = last(2 * SIZE)
    # 5 rows of 8 bytes; the scales begin at the next multiple of 64.
    assert torch.equal(last(4 * SIZE + 64 + 4 * ROWS * 2), right)
    assert not torch.equal(last(4 * SIZE + 64), right)


def test_a_step_that_the_arena_has_no_room_for_is_refused():
    more = step_inputs([[1] * (BOUND + 1)], [0], [[0, 1]], 4)
    with pytest.raises(ValueError, match=f"N is {BOUND + 1}, the arena has room for {BOUND}"):
        interpret(plan(APART), lambda buffer: TABLE, more, {})
    assert len(interpret(plan(), lambda buffer: TABLE, more, {})) == len(STEPS)


def test_out_dtypes_are_those_of_the_buffers():
    narrow = tuple(
        replace(s, outputs={"out": "n"}) if s.outputs["out"] == "b" else s for s in STEPS
    )
    narrow = (*narrow[:3], replace(narrow[3], inputs={"x": "a", "y": "n"}))
    values = run(plan({}, narrow, (arena("n", Format("bfloat16")),)))
    assert values[2]["n"].dtype == torch.bfloat16
    assert torch.equal(values[2]["n"], (6 * X).bfloat16())


def test_new_states_are_not_numbers():
    plain = new_states(tiny().plan, 3)
    assert plain["k_cache_0"].shape == (3, 2, 4, 32) and plain["k_cache_0"].isnan().all()
    scaled = new_states(tiny(int8_states=True).plan, 3)["v_cache_1"]
    assert isinstance(scaled, Scaled) and scaled.scales.shape == (3, 2, 4, 1)
    assert scaled.scales.isnan().all()


def test_weights_are_stacked_and_rounded_as_the_plan_says():
    made = tiny("bfloat16", Storage(8, 32))
    read = DrawnWeights(made.reference).read
    names = tuple(f"model.layers.0.mlp.{x}_proj.weight" for x in ("gate", "up"))
    stacked = next(b for b in made.plan.of_kind("weight") if b.sources == names)
    got = plan_weights(read)(stacked)
    assert isinstance(got, Scaled)
    expected = torch.cat([read(name) for name in names])
    assert (got.dequantize() - expected).abs().max() < 0.01
    norm = made.plan.buffer("model.norm.weight")
    assert torch.equal(plan_weights(read)(norm), read("model.norm.weight"))


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("int8_states", [False, True])
@pytest.mark.parametrize("storage", core(None, Storage(4, 32), further=[Storage(8, 32)]), ids=str)
def test_steps_in_chunks_are_one_step(storage, int8_states):
    """States carry over; a target's plan, grouped and placed, is the plan that it rewrote."""
    made = tiny("float32", storage, int8_states=int8_states)
    rewritten = KIND.rewrite(made.plan)
    placed = KIND.place(KIND.group(rewritten)[0])
    weights = plan_weights(DrawnWeights(made.reference).read)
    tokens = [(7 * i) % 80 for i in range(11)]
    pages = [[2, 0, 1]]

    def logits(given: Plan, *chunks: int) -> Tensor:
        states, found, start = new_states(given, 3), [], 0
        for size in chunks:
            chunk = step_inputs([tokens[start : start + size]], [start], pages, 4)
            found.append(plan_logits(given, weights, chunk, states))
            start += size
        return torch.cat(found)

    whole = logits(rewritten, 8, 3)
    assert whole.isfinite().all() and TINY_LIMITS.max_logit_rows == 8
    assert torch.allclose(logits(rewritten, 3, 1, 7), whole, rtol=1e-4, atol=1e-4)
    assert torch.equal(logits(placed, 8, 3), whole)
