"""Tells what a model thinks from what it answers, by the readers that servers have, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ingot.runtime.answers import AnswerReader


class AnswerPiece(NamedTuple):
    """New text of an answer, or of the thinking before it."""

    text: str
    thinking: bool


class AnswerParts:
    """The `text` of an answer and its `thinking`, as far as they have come.

    Args:
        reader: tells them apart; None where all is text.
    """

    def __init__(self, reader: AnswerReader | None) -> None:
        self.text = self.thinking = ""
        self._reader = reader

    def take(self, text: str, *, last: bool = False) -> Iterator[AnswerPiece]:
        """Takes what the model has written next, and gives what it adds to the parts."""
        if self._reader is None:
            yield from self.add(text, thinking=False)
            return
        deltas = self._reader.feed(text) + (self._reader.finish() if last else [])
        for delta in deltas:
            yield from self.add(delta.reasoning, thinking=True)
            yield from self.add(delta.content, thinking=False)

    def add(self, text: str, *, thinking: bool) -> Iterator[AnswerPiece]:
        """Adds to one of the parts, which need not be told apart."""
        if not text:
            return
        if thinking:
            self.thinking += text
        else:
            self.text += text
        yield AnswerPiece(text, thinking)
