"""Recurrences in cells are those token by token, and records go on in the middle of a cell."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from ingot.artifact.cells import GRID, Cells
from ingot.ops import OPS
from tests.ops import sample_inputs

reference = OPS["recurrence"].reference
TOKENS = 2 * GRID + 7
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


def cells_of(call: dict, grid: int) -> Cells:
    return Cells({n: tuple(x.shape[2:]) for n, x in call.items() if hasattr(x, "shape")}, grid)


@pytest.mark.parametrize(("rule", "groups", "heads", "by_key"), CASES)
@pytest.mark.parametrize("grid", [GRID, 5])
def test_cells_are_the_recurrence(monkeypatch, rule, groups, heads, by_key, grid):
    call = drawn(monkeypatch, rule, groups, heads, by_key, TOKENS)
    torch.testing.assert_close(
        reference(**call, grid=grid), reference(**call), rtol=2e-6, atol=5e-6
    )


@pytest.mark.parametrize(("rule", "groups", "heads", "by_key"), CASES)
def test_records_go_on_wherever_steps_begin(monkeypatch, rule, groups, heads, by_key):
    call = drawn(monkeypatch, rule, groups, heads, by_key, TOKENS)
    whole = reference(**rows_of(call, 0, TOKENS))
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
    got, right = reference(**call, grid=GRID), reference(**call)
    assert got.isfinite().all()
    torch.testing.assert_close(got, right, rtol=2e-6, atol=5e-6)


def test_a_beta_that_is_left_out_is_one(monkeypatch):
    call = drawn(monkeypatch, "delta", 2, 2, False, TOKENS)
    ones = reference(**call | {"beta": torch.ones_like(call["beta"])}, grid=GRID)
    assert torch.equal(reference(**call | {"beta": None}, grid=GRID), ones)


def test_a_record_has_matrices_and_rows_of_all_tokens_but_one():
    cells = Cells({"q": (1, 4), "k": (1, 4), "v": (3, 8), "decay": (3,), "beta": (3,)}, 16)
    assert cells.matrices == (12, 8)
    assert cells.columns == {"k": 4, "v": 24, "decay": 3, "beta": 3}
    assert cells.offsets == {"k": 0, "v": 4, "decay": 28, "beta": 31, "a": 34, "b": 34}
    assert cells.record == (12 + 64, 8), "15 rows of 34 numbers"
