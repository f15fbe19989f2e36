"""Thinking and answer of a text, whole and as it comes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.cli.chat.thinking import CLOSE, OPEN, split

PARTS = st.sampled_from([OPEN, CLOSE, "<", "<th", "</", "</think", " ", "\n", "a", "b c"])


@pytest.mark.parametrize(
    ("text", "inside", "thinking", "answer"),
    [
        ("Yes.", False, "", "Yes."),
        (" Yes. ", False, "", " Yes. "),
        ("<think>\nWell.\n</think>\n\nYes.", False, "Well.", "Yes."),
        ("\n<think>\n\n</think>\n\nYes.", False, "", "Yes."),
        ("<think>Well", False, "Well", ""),
        ("Write <think> and </think>.", False, "", "Write <think> and </think>."),
        ("Well.\n</think>\n\nYes.", True, "Well.", "Yes."),
        ("Well", True, "Well", ""),
        ("<thin", False, "", "<thin"),
        ("<think>a </thi", False, "a </thi", ""),
    ],
)
def test_a_whole_text(text, inside, thinking, answer):
    assert split(text, inside=inside, whole=True) == (thinking, answer)


def test_what_may_be_part_of_a_tag_is_left_out():
    assert split(" <thi", inside=False, whole=False) == ("", "")
    assert split("<this", inside=False, whole=False) == ("", "<this")
    assert split("<think>a b </thi", inside=False, whole=False) == ("a b", "")
    assert split("<think>a b </this", inside=False, whole=False) == ("a b </this", "")


@given(st.lists(PARTS).map("".join), st.booleans())
def test_longer_texts_begin_with_what_shorter_ones_gave(text, inside):
    seen = [split(text[:end], inside=inside, whole=False) for end in range(len(text) + 1)]
    seen.append(split(text, inside=inside, whole=True))
    for shorter, longer in pairwise(seen):
        assert longer[0].startswith(shorter[0])
        assert longer[1].startswith(shorter[1])
