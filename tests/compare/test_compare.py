"""Prompts go on greedily, and the first token that the sides choose differently is named."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.compare.compare import Comparison, GreedyDifference, compare
from ingot.compare.prompts import ComparedPrompt
from ingot.runtime.tokenizer import Tokenizer
from tests.compare.table_side import TableSide, successor_table

PROMPT = ComparedPrompt("prompt 1", (3, 0, 1))


def compared(
    one: TableSide, other: TableSide, *prompts: ComparedPrompt, greedy: int = 4
) -> Comparison:
    return compare(one, other, prompts or (PROMPT,), num_greedy=greedy)


def turned(token: int, to: int, by: float) -> np.ndarray:
    """The successor table, where after `token` comes `to` by a margin."""
    table = successor_table()
    table[token, to] = table[token].max() + by
    return table


def test_equal_sides_are_identical_and_choose_alike():
    found = compared(TableSide(successor_table()), TableSide(successor_table()))
    (prompt,) = found.prompts
    assert found.measures.identical and found.difference is None
    # Of the four tokens that are compared, three are in the text that both score.
    assert (prompt.num_tokens, prompt.num_greedy, found.measures.num_positions) == (3, 4, 6)


@pytest.mark.parametrize("costs", [(0, 2), (2, 0), (1, 1)])
def test_the_first_token_that_differs_is_found_whoever_writes(costs):
    """After 1 comes 2, and then 5 by 0.5 to the one, and 3 by 2 to the other."""
    one = TableSide(turned(2, 5, 0.5), token_cost=costs[0])
    other = TableSide(successor_table(), token_cost=costs[1])
    found = compared(one, other)
    assert found.difference == GreedyDifference(
        where="prompt 1", index=1, chosen=(5, 3), texts=("", ""), margins=(0.5, 2.0)
    )
    assert found.prompts[0].num_greedy == 1
    writer, reader = sorted((one, other), key=lambda side: side.token_cost)
    assert (writer.num_greedy, reader.num_greedy) == (3, 0)


def test_the_earliest_difference_of_all_prompts_is_told():
    one = TableSide(turned(2, 5, 0.5))
    prompts = [
        ComparedPrompt("late", (0,)),
        ComparedPrompt("early", (2,)),
        ComparedPrompt("never", (5,)),
    ]
    found = compared(one, TableSide(successor_table()), *prompts, greedy=3)
    assert found.difference is not None
    assert (found.difference.where, found.difference.index) == ("early", 0)
    assert [prompt.num_greedy for prompt in found.prompts] == [2, 0, 3]


def test_measures_of_all_prompts_are_beside_those_of_each():
    one = TableSide(turned(2, 5, 0.5))
    prompts = [ComparedPrompt("far", (2, 2)), ComparedPrompt("equal", (5,))]
    found = compared(one, TableSide(successor_table()), *prompts, greedy=0)
    assert [prompt.measures.max_error for prompt in found.prompts] == [2.5, 0.0]
    assert [prompt.measures.identical for prompt in found.prompts] == [False, True]
    assert found.measures.num_positions == 3 and found.measures.top1 == pytest.approx(1 / 3)


def test_without_greedy_tokens_only_the_prompt_is_scored():
    one = TableSide(turned(1, 5, 0.5))
    found = compared(one, TableSide(successor_table()), greedy=0)
    assert found.difference is None and found.prompts[0].num_greedy == 0
    assert found.measures.num_positions == 3 and one.num_greedy == 0


def test_a_text_ends_where_either_model_ends_it():
    one = TableSide(turned(4, 6, 1.0))
    for ends in ({"eos_token_ids": (3,)}, {}):
        found = compared(one, TableSide(successor_table(), **ends), greedy=8)
        # After 1 and 2 comes 3, and only where that ends no text, 4 and the difference.
        assert (found.difference is None) == bool(ends)
        assert found.measures.num_positions == (4 if ends else 10)


def test_a_prompt_goes_on_as_far_as_both_sides_take_it():
    short = TableSide(successor_table(), max_model_len=4)
    found = compared(TableSide(successor_table()), short, greedy=8)
    assert found.measures.num_positions == 4 and found.prompts[0].num_greedy == 2
    unlimited = TableSide(successor_table(), max_model_len=None)
    assert compared(unlimited, unlimited, greedy=20).measures.num_positions == 22


def test_what_is_after_a_text_that_is_not_greedy_is_not_counted():
    """Whoever writes with a cache may break a near tie in another way than without."""

    class Sloppy(TableSide):
        def greedy(self, tokens, count):
            return [2, 7, *range(count - 2)]

    one = Sloppy(turned(0, 5, 0.5), token_cost=0)
    found = compared(one, TableSide(successor_table()), greedy=5)
    assert found.difference is None and found.prompts[0].num_greedy == 2


def test_progress_goes_through_the_prompts():
    calls: list[tuple[str, str, float | None]] = []
    side = TableSide(successor_table())
    prompts = [ComparedPrompt("one", (1,)), ComparedPrompt("two", (2,))]
    compare(side, side, prompts, progress=lambda *call: calls.append(call))
    assert calls == [("compare", "one", 0.0), ("compare", "two", 0.5), ("compare", "2 prompts", 1)]


def test_tokens_that_differ_are_spelled_by_whichever_side_can(shakespeare_dir):
    tokenizer = Tokenizer((shakespeare_dir / "tokenizer.json").read_bytes())
    one, other = TableSide(turned(2, 5, 0.5)), TableSide(successor_table())
    for side in (one, other):
        one.tokenizer = other.tokenizer = None
        side.tokenizer = tokenizer
        found = compared(one, other).difference
        assert found is not None and found.texts == (tokenizer.decode([5]), tokenizer.decode([3]))
        assert all(found.texts)
