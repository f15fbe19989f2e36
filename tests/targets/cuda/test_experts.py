"""Routers and the products of experts against their references; no row depends on its company."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ingot.artifact.launches import WORKSPACE
from ingot.artifact.plan import Attr
from ingot.errors import CodegenError
from ingot.ops.activation import KINDS
from ingot.targets.cuda.calls_experts import CALLS, DIRECT_ROWS, ExpertStack
from ingot.targets.cuda.calls_rows import ACTIVATIONS
from ingot.targets.cuda.operands import Operands
from ingot.targets.work import Work
from tests.support import samples
from tests.support.core import core
from tests.targets.cpu.experts import ALONE, CLAMPED, INTEGERS, PLAIN, ROUTERS, Experts
from tests.targets.cuda.matrices import TWO_LEVELS, in_bits, int4, int8, with_zeros
from tests.targets.cuda.mixing import MOST, Mixture, apart, routed
from tests.targets.cuda.test_products import LOOSE
from tests.targets.sketch import Sketch

ROWS = (1, DIRECT_ROWS + 1, MOST)  # without lists, with them, and with tiles of many rows
SMALL = Experts(5, 2, 32, 32)
FIRST = Mixture(Experts(2, 2, 32, 27, **CLAMPED))  # type: ignore[arg-type]
# Matrices whose columns are cut, the last split shorter than the first: those of both products, so
# that rows are wider than a second stage takes at a time, of the first one, and of the second one.
CUT = Mixture(Experts(3, 2, 576, 544, **CLAMPED), "float32")  # type: ignore[arg-type]
CUT_FIRST = Mixture(Experts(3, 2, 544, 32, **CLAMPED), "float32")  # type: ignore[arg-type]
CUT_SECOND = Mixture(Experts(3, 2, 32, 544, **CLAMPED), "float32")  # type: ignore[arg-type]
ZEROS = Experts(2, 2, 32, 32, format=with_zeros(int4(32, 32)), down_format=with_zeros(int8(32)))
# Zeros beside multipliers: in columns that are cut, and in a last tile that is short.
BOTH = Experts(
    2, 2, 544, 40, format=with_zeros(int4(32, 128)), down_format=with_zeros(int4(32, 64))
)  # fmt: skip
# Parts of other widths, which the next matrix of a stack begins as far behind.
LEVELS = Experts(
    2, 2, 96, 80, format=TWO_LEVELS["Q5_K"][0], down_format=TWO_LEVELS["Q6_K"][0]
)  # fmt: skip
# Blocks in pairs: of stacks whose scales and zeros of a second block are those of one expert.
OF_PAIRS = Experts(
    2, 2, 80, 48, format=with_zeros(int8(16)), down_format=with_zeros(int4(16, 16))
)  # fmt: skip
# Experts that are not gated: with the sums of a row in one piece, and cut.
UNGATED = (
    Mixture(Experts(3, 2, 32, 54, **ALONE)),  # type: ignore[arg-type]
    Mixture(Experts(3, 2, 544, 36, **ALONE), "float32"),  # type: ignore[arg-type]
)
FURTHER = (
    *UNGATED,
    Mixture(
        Experts(2, 2, 64, 96, format=TWO_LEVELS["IQ4_XS"][0], down_format=TWO_LEVELS["Q4_1"][0])
    ),
    CUT,
    Mixture(ZEROS),
    Mixture(OF_PAIRS),
    Mixture(Experts(2, 2, 512, 512, format=int4(32, 32), down_format=int8(512))),
    Mixture(Experts(3, 2, 64, 64, format=int4(32, 32), down_format=int8(64))),
    Mixture(
        Experts(
            3, 2, 96, 64, format=with_zeros(in_bits(5, 32, 128)), down_format=in_bits(6, 32, 32)
        )
    ),
    Mixture(PLAIN[0]),
    Mixture(PLAIN[1], "float32"),
    Mixture(PLAIN[2], "float16"),  # all are picked
    Mixture(INTEGERS[2], "float32"),
    Mixture(INTEGERS[3]),
)
SLOW = [
    *(Mixture(each, dtype) for dtype in ("float32", "float16") for each in PLAIN[:4]),  # type: ignore[arg-type]
    *(Mixture(each) for each in (*PLAIN, *INTEGERS)),
    Mixture(INTEGERS[2], "float16"),
    Mixture(INTEGERS[8], "float16"),
    Mixture(INTEGERS[4], "float32"),
]


@pytest.mark.cases(thorough=4)
@pytest.mark.parametrize(
    "case",
    core(FIRST, CUT_FIRST, CUT_SECOND, Mixture(BOTH), Mixture(LEVELS), further=FURTHER, slow=SLOW),
    ids=str,
)
def test_mixture(case: Mixture) -> None:
    """Rows are right in every class of rows, and equal to the bit in all of them."""
    whole = case.results(MOST)
    assert_right(case, MOST, whole)
    for rows in ROWS[:-1]:
        for name, found in case.results(rows).items():
            assert torch.equal(found, whole[name][:rows]), f"{name} of {rows} rows"


def assert_right(case: Mixture, rows: int, results: dict[str, Tensor]) -> None:
    right = case.right(rows)
    for name, found in results.items():
        tolerance = LOOSE[found.dtype]
        torch.testing.assert_close(
            found, right[name].view_as(found), rtol=tolerance.rtol, atol=tolerance.atol
        )


def test_parts_of_rows_that_are_wider_than_a_second_stage_takes() -> None:
    assert_right(CUT, 1, CUT.results(1))


@pytest.mark.parametrize(
    ("case", "counts"),
    [(CUT, [2, 2]), (CUT_FIRST, [2, 1]), (CUT_SECOND, [1, 2]), (Mixture(BOTH), [2, 1])],
    ids=str,
)
def test_the_products_that_are_to_be_cut_are(case: Mixture, counts: list[int]) -> None:
    plan = case.sketch[0]
    products = (i for i in plan.instructions if i.op in ("expert_gate", "expert_sum"))
    assert [ExpertStack(Operands(plan), each).splits.count for each in products] == counts


@pytest.mark.cases(thorough=3)
@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("dtype", core(torch.float32, further=[torch.bfloat16]), ids=str)
def test_router(name: str, dtype: torch.dtype) -> None:
    experts, with_bias, attrs = ROUTERS[name]
    rng = torch.Generator().manual_seed(experts)
    got, right = routed(experts, with_bias, attrs, samples.normal(rng, 5, experts).to(dtype))
    assert torch.equal(got != 0, right != 0)
    torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-6)


def test_equal_scores() -> None:
    got, right = routed(12, False, ROUTERS["softmax-8"][2], torch.zeros(2, 12))
    assert torch.equal(got, right) and bool((got[:, :2] == 0.5).all())


@st.composite
def tied(draw: st.DrawFn) -> tuple[int, dict[str, Attr], Tensor]:
    """A router without a bias, and logits of a few values, so that many are equal."""
    groups, size = draw(st.sampled_from([1, 2, 3, 5])), draw(st.integers(1, 6))
    kept = draw(st.integers(1, groups))
    attrs: dict[str, Attr] = {
        "scoring": draw(st.sampled_from(["softmax", "sigmoid"])),
        "top_k": draw(st.integers(1, kept * size)),
        "groups": groups,
        "kept_groups": kept,
        "group_score": draw(st.sampled_from(["max", "top2"])),
        "normalise": draw(st.booleans()),
        "scale": draw(st.sampled_from([1.0, 2.5])),
    }
    values = [-float("inf"), -2.0, 0.0, 0.5, 3.0]
    each = st.lists(st.sampled_from(values), min_size=groups * size, max_size=groups * size)
    return groups * size, attrs, torch.tensor(draw(st.lists(each, min_size=1, max_size=3)))


@pytest.mark.thorough
@given(tied())
def test_among_equals_the_first_is_picked(case: tuple[int, dict[str, Attr], Tensor]) -> None:
    experts, attrs, logits = case
    got, right = routed(experts, False, attrs, logits)
    assert torch.equal(got != 0, right != 0)
    torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_a_row_that_is_not_finite_stays_so(scoring: str) -> None:
    """NaN counts as the largest, and no other row notices."""
    logits = samples.normal(torch.Generator().manual_seed(0), 3, 8)
    logits[1, 5] = torch.nan
    got, right = routed(8, False, {"scoring": scoring, "top_k": 2}, logits)
    torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert got[1].isnan().any() and got[::2].isfinite().all()


@pytest.mark.parametrize("rows", ROWS[:2])
def test_an_expert_that_nobody_picks_is_not_read(rows: int) -> None:
    """Though its weights and biases are no numbers; and one that all pick serves all."""
    case = Mixture(replace(SMALL, with_bias=True), "float32")
    plan, weights = case.sketch
    inputs = case.given(rows)
    inputs["logits"][:, 3], inputs["logits"][:, 1] = -1e4, 1e4  # type: ignore[index]
    broken = {}
    for name in ("experts.gate_up", "experts.down", "gate_up_bias", "down_bias"):
        broken[name] = weights[name].clone()  # type: ignore[union-attr]
        broken[name][3] = torch.nan
    memory, right = case.run(rows, inputs, **broken), case.right(rows, inputs)
    assert bool((memory.read(plan.buffer("shares"))[:, 1] > 0.9).all())
    for name in ("inner", "sum"):
        found = memory.read(plan.buffer(name))
        torch.testing.assert_close(found, right[name].view_as(found), rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("rows", ROWS[:2])
def test_picks_without_a_share_are_zero(rows: int) -> None:
    """A share that is too small for float32 is none, so fewer experts compute the row."""
    case = Mixture(replace(SMALL, picks=3), "float32")
    inputs = case.given(rows)
    inputs["logits"][0] = torch.tensor([-200.0, 0, -200, -200, 1])  # type: ignore[index]
    memory, right = case.run(rows, inputs), case.right(rows, inputs)
    plan = case.sketch[0]
    assert int((memory.read(plan.buffer("shares"))[0] != 0).sum()) == 2
    for name in ("inner", "sum"):
        found = memory.read(plan.buffer(name))
        torch.testing.assert_close(found, right[name].view_as(found), rtol=1e-5, atol=5e-5)
    assert not memory.read(plan.buffer("inner"))[0, 2].any()


def test_another_order_of_picks_shows() -> None:
    """The test of bits sees a sum that takes experts in another order."""
    parts = samples.normal(torch.Generator().manual_seed(0), MOST, 5, 64)
    up, down = torch.zeros(MOST, 64), torch.zeros(MOST, 64)
    for place in range(5):
        up, down = up + parts[:, place], down + parts[:, 4 - place]
    assert not torch.equal(up, down)


def launched(case: Mixture, op: str, rows: int) -> list[tuple[str, list[int]]]:
    """The functions and grids of what a step of so many rows launches."""
    plan = case.sketch[0]
    group = next(group for group in plan.groups if group.kernel == op)
    sizes, found = {"N": rows}, []
    for call in CALLS[op](Operands(plan), Work(plan, group)):
        fitting = (c for c in call.choices if not c.size or sizes[c.size] <= c.most)
        choice = next(fitting, None)
        grid = [extent.of(sizes) for extent in choice.grid] if choice else [0]
        if choice and all(grid):
            found.append((choice.function.removeprefix("experts."), grid))
    return found


def test_steps_of_few_rows_make_no_lists() -> None:
    """Their grids are those of the picks, whatever these are, so that graphs can replay them."""
    picks = DIRECT_ROWS * SMALL.picks
    case = Mixture(SMALL)
    assert launched(case, "expert_gate", DIRECT_ROWS) == [("multiply_gated", [picks, 1, 1])]
    assert launched(case, "expert_sum", DIRECT_ROWS) == [
        ("multiply", [picks, 1, 1]), ("add_picks", [DIRECT_ROWS, 1, 1])
    ]  # fmt: skip


def test_splits_are_programs_of_steps_of_few_rows() -> None:
    picks = DIRECT_ROWS * CUT.experts.picks
    assert launched(CUT, "expert_gate", DIRECT_ROWS) == [
        ("multiply", [picks, 17, 2]), ("gate_picks", [picks, 2, 1])
    ]  # fmt: skip
    assert launched(CUT, "expert_sum", DIRECT_ROWS) == [
        ("multiply", [picks, 9, 2]), ("add_picks", [DIRECT_ROWS, 2, 1])
    ]  # fmt: skip
    lists = ["list_picks", "list_rows"]
    for op, then in (
        ("expert_gate", ["multiply_gated"]),
        ("expert_sum", ["multiply", "add_picks"]),
    ):
        more = launched(CUT, op, DIRECT_ROWS + 1)
        assert [function for function, _ in more] == lists + then


def test_more_picks_need_fewer_splits() -> None:
    plan = CUT.sketch[0]
    gate = next(i for i in plan.instructions if i.op == "expert_gate")
    counts = [
        ExpertStack(Operands(plan), replace(gate, attrs=gate.attrs | {"top_k": picks})).splits.count
        for picks in (1, 2, 8, 16, 64)
    ]
    assert counts == [2, 2, 2, 1, 1]


def test_the_workspace_has_room_for_all_lists() -> None:
    plan = Mixture(SMALL).sketch[0]
    stack = ExpertStack(Operands(plan), plan.instructions[2])
    rows, experts, picks = plan.limits.max_num_batched_tokens, SMALL.count, SMALL.picks
    counts, rows_of, end = stack.places
    assert counts >= 4 * experts * rows and rows_of >= counts + 4 * experts
    assert end >= rows_of + 4 * rows * picks
    *_, multiply, add = CALLS["expert_sum"](Operands(plan), Work(plan, plan.groups[2]))
    assert multiply.workspace_bytes == add.workspace_bytes == end + 4 * rows * picks * SMALL.size
    parts = add.arguments["parts"].argument
    assert (parts.buffer, parts.offset) == (WORKSPACE, end)


def test_the_workspace_has_room_for_the_parts_of_splits() -> None:
    plan = CUT.sketch[0]
    plan = replace(plan, limits=replace(plan.limits, max_num_batched_tokens=DIRECT_ROWS + 1))
    calls = CALLS["expert_gate"](Operands(plan), Work(plan, plan.groups[1]))
    multiply, gates = calls[:2]
    end = ExpertStack(Operands(plan), plan.instructions[1]).places[-1]
    parts = 4 * 2 * DIRECT_ROWS * CUT.experts.picks * 2 * CUT.experts.inner
    assert multiply.workspace_bytes == gates.workspace_bytes == end + parts
    *_, multiply, add = CALLS["expert_sum"](Operands(plan), Work(plan, plan.groups[2]))
    parts = 4 * 2 * DIRECT_ROWS * CUT.experts.picks * CUT.experts.size
    assert multiply.workspace_bytes == add.workspace_bytes == end + parts


def test_gates_are_those_of_the_op() -> None:
    assert {*ACTIVATIONS} <= {*KINDS}


@pytest.mark.parametrize(
    "op, attrs, found",
    [
        ("route", {"scoring": "softplus"}, "scores by 'softplus'"),
        ("route", {"group_score": "mean"}, "scores groups by 'mean'"),
        ("route", {"groups": 2}, "picks 2 of 5 experts, in 1 of 2 groups"),
        ("expert_gate", {"kind": "swish"}, "has the gate 'swish'"),
    ],
)
def test_what_kernels_do_not_take(op: str, attrs: dict[str, Attr], found: str) -> None:
    plan = Mixture(SMALL).sketch[0]
    changed = tuple(
        replace(i, attrs=i.attrs | attrs) if i.op == op else i for i in plan.instructions
    )
    plan = replace(plan, instructions=changed)
    group = next(g for g in plan.groups if g.kernel == op)
    with pytest.raises(CodegenError, match=found):
        CALLS[op](Operands(plan), Work(plan, group))


def test_rows_in_another_dtype_than_the_experts_are_refused() -> None:
    s = Sketch()
    SMALL.case(s, "bfloat16")
    plan = apart(s.plan())
    wide = tuple(
        replace(b, format=int8(8)) if b.name == "experts.down" else b for b in plan.buffers
    )
    plan = replace(plan, buffers=wide)
    with pytest.raises(CodegenError, match=r"experts\.down has 32 columns in the format"):
        CALLS["expert_sum"](Operands(plan), Work(plan, plan.groups[2]))
