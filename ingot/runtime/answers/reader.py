"""Splits an answer, as it comes, into reasoning, text and calls of tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ingot.runtime.answers.calls import CallReader
from ingot.runtime.answers.coming import Reading
from ingot.runtime.answers.deltas import AnswerDelta
from ingot.runtime.answers.sections import Rows, read


class AnswerReader:
    """Reads one answer. However its text is cut, the deltas make the same message.

    Args:
        rows: how reasoning and calls are marked in it.
        inside: the prompt has begun to reason.
        tools: the schema of the arguments of each tool that it may call.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        inside: bool,
        tools: Mapping[str, Mapping[str, Any]],
        new_id: Callable[[], str],
    ) -> None:
        self._parts = CallReader(tools, new_id)
        self._reading: Reading[None] | None = read(self._parts, rows, inside)

    @property
    def called(self) -> bool:
        """True once it has called a tool."""
        return self._parts.num_calls > 0

    def feed(self, text: str) -> list[AnswerDelta]:
        """Parses a piece of the answer; returns the deltas that it completes."""
        if self._reading is None:
            return [AnswerDelta(content=text)] if text else []
        self._parts.coming.text += text
        return self._advance(self._reading)

    def finish(self) -> list[AnswerDelta]:
        """Flushes the text that was held back, at the end of the answer."""
        if self._reading is None:
            return []
        self._parts.coming.ended = True
        return self._advance(self._reading)

    def _advance(self, reading: Reading[None]) -> list[AnswerDelta]:
        parts = self._parts
        try:
            next(reading)
        except StopIteration:  # all that follows is text
            self._reading = None
            parts.coming.at = len(parts.coming.text)
            parts.give_text()
        deltas, parts.deltas = parts.deltas, []
        return deltas
