"""Records of calls: equal where modules compute the same, and only there."""

from __future__ import annotations

import pytest
import torch

import ingot.ops  # noqa: F401  (registers torch.ops.ingot)
from ingot.compiler.record import Recorder

NAMED = {name: torch.empty(4, 4, device="meta") for name in ("w", "v")}
w, v = NAMED.values()
aten = torch.ops.aten


def same(one, other) -> bool:
    recorder = Recorder(NAMED, num_tokens=3)
    return recorder.record(one) == recorder.record(other)


def rows(ids):
    return ids.float().expand(4, 3).t()


def product(ids, positions):
    return rows(ids) @ w


EQUAL = {
    "itself": product,
    "what is not needed": lambda ids, positions: (positions.cos(), rows(ids) @ w)[1],
    "a whole slice": lambda ids, positions: aten.slice(rows(ids), 0, 0, 9) @ w,
    "an index with whole slices": lambda ids, positions: rows(ids)[:, :9] @ w,
}
DIFFERENT = {
    "another weight": lambda ids, positions: rows(ids) @ v,
    "another input": lambda ids, positions: rows(positions) @ w,
    "another operator": lambda ids, positions: rows(ids) + w[:3],
    "another scalar": lambda ids, positions: rows(ids) @ w * 1.0,
    "a part of a slice": lambda ids, positions: aten.slice(rows(ids), 0, 0, 2) @ w,
}


@pytest.mark.parametrize("name", EQUAL)
def test_modules_that_compute_the_same_have_one_record(name):
    assert same(EQUAL[name], product)


@pytest.mark.parametrize("name", DIFFERENT)
def test_modules_that_compute_something_else_have_another(name):
    assert not same(DIFFERENT[name], product)


def test_order_counts():
    assert not same(lambda i, p: i.cos() + p.sin(), lambda i, p: (p.sin(), i.cos())[1] + p.sin())


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (1, True), (2.0, 3.0)])
def test_scalars_are_equal_only_in_kind_and_value(one, other):
    assert not same(lambda i, p: w * one + i.sum(), lambda i, p: w * other + i.sum())


def test_results_of_one_call_are_told_apart():
    assert not same(lambda i, p: w.split(2)[0], lambda i, p: w.split(2)[1])


def test_a_tensor_from_elsewhere_is_refused():
    with pytest.raises(ValueError, match="neither the module's"):
        Recorder({}, 3).record(product)


def test_a_write_is_refused():
    with pytest.raises(ValueError, match="writes into"):
        Recorder(NAMED, 3).record(lambda i, p: (i + 1).add_(2))


def test_what_a_call_may_write_into_and_leaves_out_is_no_write():
    def shifted(ids, positions):
        return torch.ops.ingot.token_shift(rows(ids)[None])

    def kept(ids, positions):
        tables = [torch.ops.aten.clone(positions) for _ in range(2)]
        return torch.ops.ingot.token_shift(rows(ids)[None], w[None], *tables)

    assert same(shifted, shifted)
    with pytest.raises(ValueError, match="writes into"):
        Recorder(NAMED, 3).record(kept)
