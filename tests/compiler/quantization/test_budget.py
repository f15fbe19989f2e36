"""Formats under a budget: the knapsack beside every combination there is."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.artifact.formats import Storage
from ingot.compiler.quantization.budget import (
    FREE_ROWS,
    SHARE_OF_ROWS,
    Choice,
    Item,
    Rows,
    finer_rows,
    smallest,
    within_bytes,
    within_cost,
)
from ingot.compiler.quantization.costs import Way

WAYS: tuple[Way, ...] = (Storage(4, 32), Storage(5, 32), Storage(6, 32), None)


def item(name: str, *points: tuple[int, float]) -> Item:
    ways = WAYS[: len(points)]
    return Item(
        (name,),
        {way: nbytes for way, (nbytes, _) in zip(ways, points, strict=True)},
        {way: cost for way, (_, cost) in zip(ways, points, strict=True)},
    )


points = st.tuples(st.integers(1, 40), st.floats(0, 8))
items = st.lists(st.lists(points, min_size=1, max_size=4), min_size=1, max_size=4).map(
    lambda found: [item(f"m{i}", *each) for i, each in enumerate(found)]
)


def every_choice(given: list[Item]) -> list[tuple[int, float]]:
    """Bytes and cost of all combinations."""
    return [
        (
            sum(i.nbytes[w] for i, w in zip(given, ways, strict=True)),
            sum(i.costs[w] for i, w in zip(given, ways, strict=True)),
        )
        for ways in product(*(i.nbytes for i in given))
    ]


def is_what_it_says(choice: Choice, given: list[Item]) -> bool:
    ways = [choice.ways[i.names[0]] for i in given]
    nbytes = sum(i.nbytes[w] for i, w in zip(given, ways, strict=True))
    cost = sum(i.costs[w] for i, w in zip(given, ways, strict=True))
    return nbytes == choice.nbytes and choice.cost == pytest.approx(cost)


@settings(deadline=None, derandomize=True, database=None)
@given(items, st.integers(1, 160))
def test_no_choice_of_fewer_bytes_costs_less(given: list[Item], most: int) -> None:
    choice = within_bytes(given, most)
    assert is_what_it_says(choice, given)
    # What it takes, it takes at the least cost; a budget may leave room for less than a step.
    assert choice.cost <= min(c for n, c in every_choice(given) if n <= choice.nbytes) + 1e-9 or (
        choice.nbytes <= most
    )
    if smallest(given).nbytes <= most:
        assert choice.nbytes <= most


@settings(deadline=None, derandomize=True, database=None)
@given(items, st.integers(1, 160))
def test_a_budget_is_missed_by_less_than_a_step(given: list[Item], most: int) -> None:
    if smallest(given).nbytes > most:
        return
    widest = max(max(i.nbytes.values()) - min(i.nbytes.values()) for i in given)
    best = min((c for n, c in every_choice(given) if n <= most - widest), default=None)
    if best is not None:
        assert within_bytes(given, most).cost <= best + 1e-9


@settings(deadline=None, derandomize=True, database=None)
@given(items, st.floats(0, 20))
def test_a_cost_is_met_if_any_choice_meets_it(given: list[Item], most: float) -> None:
    choice, all_choices = within_cost(given, most), every_choice(given)
    assert is_what_it_says(choice, given)
    least = min(cost for _, cost in all_choices)
    assert choice.cost <= most + 1e-9 or choice.cost == pytest.approx(least)
    widest = max(max(i.nbytes.values()) - min(i.nbytes.values()) for i in given)
    fewest = min((n for n, cost in all_choices if cost <= most), default=None)
    if fewest is not None:
        assert choice.nbytes <= fewest + widest


def test_what_saves_most_a_byte_comes_first() -> None:
    given = [item("dull", (10, 1.0), (20, 0.9)), item("keen", (10, 1.0), (20, 0.2))]
    choice = within_bytes(given, 35)
    assert choice.ways == {"dull": WAYS[0], "keen": WAYS[1]}


def test_a_large_step_is_taken_where_many_small_ones_would_leave_no_room() -> None:
    """The small ones save a little more a byte, and yet less in all."""
    small = [item(f"m{i}", (1, 1.05), (6, 0.0)) for i in range(10)]
    given = [item("embedding", (10, 10.0), (60, 0.0)), *small]
    bytes_of_small = within_bytes(given, 75)
    assert bytes_of_small.ways["embedding"] == WAYS[1]
    assert (bytes_of_small.nbytes, bytes_of_small.cost) == (75, pytest.approx(9 * 1.05))
    fewest = within_cost(given, 9.5)
    assert (fewest.nbytes, fewest.cost) == (75, pytest.approx(9 * 1.05))


def test_ways_above_the_curve_are_never_taken() -> None:
    """Of four points, the second lies above the line between its neighbours."""
    assert item("m", (10, 4.0), (20, 3.9), (30, 1.0), (40, 1.0)).curve() == [WAYS[0], WAYS[2]]


def test_matrices_that_are_stored_alike_share_a_choice() -> None:
    both = Item(("q", "k"), {WAYS[0]: 8, WAYS[1]: 10}, {WAYS[0]: 1.0, WAYS[1]: 0.5})
    assert within_bytes([both], 10).ways == {"q": WAYS[1], "k": WAYS[1]}


def test_rows_are_fine_where_a_product_saves_most_until_little_is_left() -> None:
    rows = [
        Rows(("head",), 0.04, 1000.0),
        Rows(("q", "k"), 0.03, 100.0),
        Rows(("down",), 0.01, 500.0),
    ]
    left = 0.08 - 0.03
    enough = (left - FREE_ROWS) / SHARE_OF_ROWS
    assert finer_rows(rows, enough + 1e-6) == {"q", "k"}
    assert finer_rows(rows, enough - 1e-6) == {"q", "k", "head"}
    assert finer_rows(rows, 1.0) == frozenset()
    assert finer_rows(rows, 0.0) == {"q", "k", "head", "down"}
