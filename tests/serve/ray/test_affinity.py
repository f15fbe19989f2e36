"""Requests go where their prefix is, as long as that replica is not much busier than others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingot.serve.ray.affinity import BLOCK_TOKENS, MAX_BLOCKS, Balance, PrefixTable, prefix_blocks

tokens = st.lists(st.integers(0, 100_000), max_size=5 * BLOCK_TOKENS)
LOADS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 40), min_size=1)


@given(tokens, tokens, st.text(max_size=3))
def test_blocks_are_equal_as_far_as_prefixes_are(first, second, salt):
    ours, theirs = prefix_blocks(first, salt), prefix_blocks(second, salt)
    assert len(ours) == len(first) // BLOCK_TOKENS
    for i, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        end = (i + 1) * BLOCK_TOKENS
        assert (a == b) == (first[:end] == second[:end])


def test_salts_part_prefixes_and_long_prompts_are_cut():
    long = list(range((MAX_BLOCKS + 7) * BLOCK_TOKENS))
    assert len(prefix_blocks(long)) == MAX_BLOCKS
    assert not set(prefix_blocks(long, "a")) & set(prefix_blocks(long, "b"))


@given(tokens, LOADS)
def test_every_replica_is_offered_once_and_without_knowledge_the_idlest_first(prompt, loads):
    order = PrefixTable(Balance()).order(prefix_blocks(prompt), loads)
    assert sorted(order) == sorted(loads)
    assert [loads[name] for name in order] == sorted(loads.values())


def test_routers_that_know_nothing_of_one_another_agree_and_spread():
    loads = dict.fromkeys("abcd", 0)
    prompts = [[i] * BLOCK_TOKENS for i in range(200)]
    first = [PrefixTable(Balance()).order(prefix_blocks(prompt), loads)[0] for prompt in prompts]
    again = [PrefixTable(Balance()).order(prefix_blocks(prompt), loads)[0] for prompt in prompts]
    assert first == again
    assert all(25 <= first.count(name) <= 75 for name in "abcd")


def test_the_longest_prefix_wins():
    table, loads = PrefixTable(Balance()), {"a": 2, "b": 1, "c": 0}
    prompt = list(range(4 * BLOCK_TOKENS))
    table.note(prefix_blocks(prompt[: 2 * BLOCK_TOKENS]), "a")
    table.note(prefix_blocks(prompt[:BLOCK_TOKENS]), "b")
    assert table.order(prefix_blocks(prompt), loads)[0] == "a"
    assert table.order(prefix_blocks(prompt[:BLOCK_TOKENS]), loads)[0] == "b"
    assert table.order(prefix_blocks([7] * BLOCK_TOKENS), loads)[0] == "c"


def test_a_replica_that_is_too_busy_is_passed_over():
    table = PrefixTable(Balance(more=4, times=1.5))
    blocks = prefix_blocks([1] * BLOCK_TOKENS)
    table.note(blocks, "a")
    assert table.order(blocks, {"a": 4, "b": 0})[0] == "a"
    assert table.order(blocks, {"a": 5, "b": 0})[0] == "b"
    assert table.order(blocks, {"a": 30, "b": 20})[0] == "a"
    assert table.order(blocks, {"a": 31, "b": 20})[0] == "b"


def test_a_replica_that_has_gone_is_passed_over_for_one_with_less_of_the_prefix():
    table, prompt = PrefixTable(Balance()), [1] * (2 * BLOCK_TOKENS)
    table.note(prefix_blocks(prompt[:BLOCK_TOKENS]), "b")
    table.note(prefix_blocks(prompt)[1:], "a")
    assert table.order(prefix_blocks(prompt), {"a": 3, "b": 1, "c": 0})[0] == "a"
    assert table.order(prefix_blocks(prompt), {"b": 1, "c": 0}) == ["b", "c"]


def test_only_the_newest_prefixes_are_kept():
    table = PrefixTable(Balance(), capacity=2)
    old, mid, new = (prefix_blocks([i] * BLOCK_TOKENS) for i in (1, 2, 3))
    for blocks in (old, mid, new):
        table.note(blocks, "a")
    assert [table.order(b, {"a": 2, "b": 0})[0] for b in (old, mid, new)] == ["b", "a", "a"]
    table.note(mid, "a")
    table.note(old, "a")  # now the new one was asked for the longest ago
    assert [table.order(b, {"a": 2, "b": 0})[0] for b in (old, mid, new)] == ["a", "a", "b"]
