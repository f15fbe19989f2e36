"""Recurrences in cells are those token by token, and records go on in the middle of a cell."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from ingot.artifact.cells import GRID, Cells
from ingot.ops import OPS, cells
from tests.ops import sample_inputs

reference = OPS["recurrence"].reference
TOKENS = 2 * GRID + 7
LONG = cells.CELLS_AT_ONCE * GRID + 7
CASES = [
    (rule, groups, heads, by_key)
    for rule, groups, heads in (("add", 1, 2), ("delta", 2, 2), ("low_rank", 2, 2))
    for by_key in (False, True)
]


def drawn(
    monkeypatch: pytest.MonkeyPatch, rule: str, groups: int, heads: int, by_key: bool, count: int
) -> dict:
    monkeypatch.setattr(sample_inputs, "NUM_ROWS", count)
    return sample_inputs.recurrence_call(
        torch.Generator().manual_seed(1), rule, groups, heads, 12, 20, by_key, False, torch.float32
    )


def rows_of(call: dict, begin: int, end: int) -> dict:
    return {
        name: x[:, begin:end] if isinstance(x, torch.Tensor) and x.shape[:1] == (1,) else x
        for name, x in call.items()
        if name != "skip"
    }


def token_by_token(call: dict) -> torch.Tensor:
    """What the recurrence says it is, as over records."""
    _, count, heads, width = call["v"].shape
    state = torch.full((1, heads * call["k"].shape[-1], width), torch.nan)
    spans = torch.tensor([(0, count, 0)])
    return reference(**call, state=state, spans=spans, records=torch.tensor([0]))


def in_float64(call: dict) -> torch.Tensor:
    """The rules as they are written down, for one token after the other."""
    given = {
        n: x[0].double() for n, x in call.items() if isinstance(x, torch.Tensor) and n != "skip"
    }
    heads = call["v"].shape[2]
    given |= {n: given[n].repeat_interleave(heads // given[n].shape[1], 1) for n in ("q", "k")}
    decay = given["decay"] if given["decay"].dim() == 3 else given["decay"][..., None]
    s = torch.zeros(heads, given["k"].shape[-1], given["v"].shape[-1], dtype=torch.float64)
    out = []
    for t in range(len(decay)):
        q, k, v = (given[name][t, :, :, None] for name in ("q", "k", "v"))
        before, s = s, decay[t].exp()[..., None] * s
        if call["rule"] == "low_rank":
            a, b = (given[name][t, :, :, None] for name in ("a", "b"))
            s = s - b @ (before.mT @ a).mT + k @ v.mT
        else:
            read = s.mT @ k if call["rule"] == "delta" else 0.0
            s = s + k @ (given["beta"][t, :, None, None] * (v - read)).mT
        out.append((s.mT @ q)[..., 0])
    skip = call["skip"]
    return torch.stack(out) if skip is None else torch.stack(out) + skip[:, None] * given["v"]


def cells_of(call: dict, grid: int) -> Cells:
    return Cells({n: tuple(x.shape[2:]) for n, x in call.items() if hasattr(x, "shape")}, grid)


@pytest.mark.parametrize(("rule", "groups", "heads", "by_key"), CASES)
@pytest.mark.parametrize("grid", [GRID, 5])
def test_cells_are_the_recurrence(monkeypatch, rule, groups, heads, by_key, grid):
    call = drawn(monkeypatch, rule, groups, heads, by_key, TOKENS)
    torch.testing.assert_close(
        reference(**call, grid=grid), token_by_token(call), rtol=2e-6, atol=5e-6
    )


# Of a token, on the whole: 1 forgets nothing, and exp(-12) nearly all.
DECAYS = [0.9999, 0.9, 0.05, math.exp(-12.0)]


def farthest(call: dict, *, right: torch.Tensor | None = None) -> float:
    """How far a whole sequence is from numbers, by default the right ones, in parts of these."""
    right = in_float64(call) if right is None else right.double()[0]
    return float((reference(**call)[0] - right).norm() / right.norm())


@pytest.mark.parametrize("rule", ["add", "delta", "low_rank"])
@pytest.mark.parametrize("decay", DECAYS)
def test_whole_sequences_are_right_whatever_decays(monkeypatch, rule, decay):
    """More cells than are computed at a time, and some tokens."""
    call = drawn(monkeypatch, rule, 2, 2, rule == "low_rank", LONG)
    call["decay"] = math.log(decay) * (0.5 + call["decay"].abs())
    assert farthest(call) < 1e-6
    assert farthest(call, right=token_by_token(call)) < 1e-6


def test_a_whole_sequence_may_mix_decays_of_all_sizes(monkeypatch):
    call = drawn(monkeypatch, "low_rank", 2, 2, True, LONG)
    places = torch.arange(call["decay"].numel()) * 7 % len(DECAYS)
    call["decay"] = torch.tensor(DECAYS).log()[places].view_as(call["decay"])
    assert farthest(call) < 1e-6


def test_a_group_of_cells_goes_on_from_the_one_before(monkeypatch):
    call = drawn(monkeypatch, "delta", 1, 2, False, TOKENS)
    whole = reference(**call)
    monkeypatch.setattr(cells, "CELLS_AT_ONCE", 1)
    torch.testing.assert_close(reference(**call), whole, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("rule", ["add", "delta", "low_rank"])
def test_gradients_are_those_of_the_rules(monkeypatch, rule):
    call = drawn(monkeypatch, rule, 2, 2, True, TOKENS)
    names = [n for n, x in call.items() if isinstance(x, torch.Tensor)]
    for name in names:
        call[name].requires_grad_()
    given, weights = [call[name] for name in names], torch.randn(call["v"].shape)
    right = torch.autograd.grad((in_float64(call) * weights).sum(), given)
    got = torch.autograd.grad((reference(**call) * weights).sum(), given)
    for name, mine, other in zip(names, got, right, strict=True):
        assert (mine - other).norm() < 5e-6 * other.norm(), name


def faulty_sums(decay, counts):
    return SUMMED(decay, torch.ge if counts is torch.gt else counts)


def faulty_moves(matrix, fades, rest, parts):
    return MOVED(matrix, fades, rest, [part._replace(reads=None) for part in parts])


FAULTS = [
    ("low_rank", "summed", faulty_sums),
    ("low_rank", "one_down", lambda weights: weights),
    ("delta", "moved", faulty_moves),
    ("delta", "solved", lambda weights, *wanted: wanted),
    ("delta", "between", lambda decay: BETWEEN(decay.roll(1, -2))),
    ("add", "between", lambda decay: BETWEEN(decay) ** 1.001),
]  # fmt: skip
SUMMED, MOVED, BETWEEN = cells.summed, cells.moved, cells.between


@pytest.mark.parametrize(("rule", "name", "fault"), FAULTS)
def test_a_fault_in_cells_shows(monkeypatch, rule, name, fault):
    call = drawn(monkeypatch, rule, 2, 2, True, TOKENS)
    assert farthest(call) < 1e-6
    monkeypatch.setattr(cells, name, fault)
    assert farthest(call) > 1e-5


@pytest.mark.parametrize(("rule", "groups", "heads", "by_key"), CASES)
def test_records_go_on_wherever_steps_begin(monkeypatch, rule, groups, heads, by_key):
    call = drawn(monkeypatch, rule, groups, heads, by_key, TOKENS)
    whole = token_by_token(rows_of(call, 0, TOKENS))
    state = torch.full((2, *cells_of(call, GRID).record), torch.nan)
    found = [
        reference(
            **rows_of(call, begin, end), grid=GRID, state=state,
            spans=torch.tensor([(0, 0, 3), (0, end - begin, begin)]), records=torch.tensor([0, 1]),
        )
        for begin, end in pairwise((0, 3, 15, 16, 17, 31, 36, TOKENS))
    ]  # fmt: skip
    torch.testing.assert_close(torch.cat(found, 1), whole, rtol=2e-6, atol=5e-6)
    assert state[0].isnan().all() and state[1].isfinite().all()


def test_decays_that_leave_nothing_stay_finite(monkeypatch):
    """A factored form would divide by exp(-200)."""
    call = drawn(monkeypatch, "delta", 2, 2, True, TOKENS)
    call["decay"] = call["decay"] * 40 - 12.0
    call["decay"][:, ::5] = -1e-4
    got, right = reference(**call, grid=GRID), token_by_token(call)
    assert got.isfinite().all()
    torch.testing.assert_close(got, right, rtol=2e-6, atol=5e-6)


def test_a_beta_that_is_left_out_is_one(monkeypatch):
    call = drawn(monkeypatch, "delta", 2, 2, False, TOKENS)
    ones = reference(**call | {"beta": torch.ones_like(call["beta"])}, grid=GRID)
    assert torch.equal(reference(**call | {"beta": None}, grid=GRID), ones)


def test_a_record_has_matrices_and_rows_of_all_tokens_but_one():
    layout = Cells({"q": (1, 4), "k": (1, 4), "v": (3, 8), "decay": (3,), "beta": (3,)}, 16)
    assert layout.matrices == (12, 8)
    assert layout.columns == {"k": 4, "v": 24, "decay": 3, "beta": 3}
    assert layout.offsets == {"k": 0, "v": 4, "decay": 28, "beta": 31, "a": 34, "b": 34}
    assert layout.record == (12 + 64, 8), "15 rows of 34 numbers"
