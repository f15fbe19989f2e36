"""Splits an answer, as it comes, into reasoning, text and calls of tools."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ingot.serve.chat.calls import CallReader
from ingot.serve.chat.coming import SPACE, Coming, Reading, settled
from ingot.serve.chat.deltas import AnswerDelta
from ingot.serve.chat.formats import ToolFormat

OPEN, CLOSE = "<think>", "</think>"


class AnswerReader:
    """Reads one answer. However its text is cut, the deltas make the same message.

    Args:
        thinks: whether it may begin with reasoning in tags; `inside`: the prompt has opened it.
        tools: the format and the names of the tools that it may call.
    """

    def __init__(
        self,
        *,
        thinks: bool,
        inside: bool,
        tools: ToolFormat | None,
        names: Collection[str],
        new_id: Callable[[], str],
    ) -> None:
        self._thought = Coming() if thinks else None
        self._reasoning = self._think(inside)
        self._calls = CallReader(names, new_id) if tools else None
        self._reading = tools.read(self._calls) if tools and self._calls else None
        self._deltas: list[AnswerDelta] = []

    @property
    def called(self) -> bool:
        """True once it has called a tool."""
        return self._calls is not None and self._calls.num_calls > 0

    def feed(self, text: str) -> list[AnswerDelta]:
        """Parses a piece of the answer; returns the deltas that it completes."""
        return self._advance(text, ended=False)

    def finish(self) -> list[AnswerDelta]:
        """Flushes the text that was held back, at the end of the answer."""
        return self._advance("", ended=True)

    def _advance(self, text: str, *, ended: bool) -> list[AnswerDelta]:
        if self._thought is not None:
            text = self._after_thought(self._thought, text, ended=ended)
        if self._calls is None or self._reading is None:
            if text:
                self._deltas.append(AnswerDelta(content=text))
        elif self._thought is None:
            self._calls.coming.text += text
            self._calls.coming.ended = ended
            next(self._reading, None)
            self._deltas += self._calls.deltas
            self._calls.deltas.clear()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _after_thought(self, coming: Coming, text: str, *, ended: bool) -> str:
        """Reads reasoning; what follows it."""
        coming.text += text
        coming.ended = ended
        try:
            next(self._reasoning)
        except StopIteration:
            self._thought = None
            return coming.text
        return ""

    def _think(self, inside: bool) -> Reading[None]:
        coming = self._thought
        assert coming is not None, "nothing is read of an answer that does not think"
        if not inside:
            yield from coming.skip_space()
            if not (yield from coming.starts_with(OPEN)):
                coming.at = 0
                return
        yield from coming.skip_space()
        coming.take()
        while (at := coming.text.find(CLOSE)) < 0:
            self._give(len(coming.text) if coming.ended else settled(coming.text, (CLOSE,)))
            if coming.ended:
                coming.text = ""
                return
            yield
        self._give(at)
        coming.at = coming.text.find(CLOSE) + len(CLOSE)
        yield from coming.skip_space()
        coming.take()

    def _give(self, end: int) -> None:
        """Hands out reasoning, without the white space at its end."""
        coming = self._thought
        assert coming is not None, "reasoning is read where there may be some"
        coming.at = len(coming.text[:end].rstrip(SPACE))
        if text := coming.take():
            self._deltas.append(AnswerDelta(reasoning=text))
