"""The text that golden prompts are made of, and that every tokenizer must encode."""

from __future__ import annotations

from collections.abc import Sequence

TEXT = (
    "Shall I compare thee to a summer's day? Thou art more lovely and more temperate: "
    "Rough winds do shake the darling buds of May, And summer's lease hath all too short a date; "
)


def added_before(text: Sequence[int], whole: Sequence[int]) -> list[int]:
    """Prefix that a tokenizer adds to a text, such as BOS: the part of `whole` before `text`."""
    own, found = list(text), list(whole)
    places = range(len(found) - len(own) + 1)
    return next((found[:place] for place in places if found[place:][: len(own)] == own), [])
