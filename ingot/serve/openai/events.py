"""Answers as server-sent events, put together from bytes that were prepared once."""

from __future__ import annotations

from typing import Literal

import msgspec

from ingot.serve.openai.answers import AnswerHead, Counts
from ingot.serve.openai.requests import StreamOptions

Usages = Literal["none", "last", "each"]

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"

encode = msgspec.json.Encoder().encode


class AnswerEvents:
    """The events of one answer: chunks that share their head, usage if it is wanted, the end."""

    def __init__(self, head: AnswerHead, counts: Counts, options: StreamOptions | None) -> None:
        self._counts = counts
        self._usages = _usages(options)
        self._begin = b"data: " + encode(head)[:-1] + b',"choices":['
        self._end = b"]}\n\n" if self._usages == "none" else b'],"usage":null}\n\n'

    def chunk(self, choice: msgspec.Struct) -> bytes:
        """A chunk with a choice."""
        return self.chunk_of(encode(choice))

    def chunk_of(self, choice: bytes) -> bytes:
        """A chunk with a choice that is JSON already."""
        return b"".join((self._begin, choice, self._closing()))

    def last(self) -> bytes:
        """Bytes that end a stream."""
        if self._usages == "none":
            return DONE
        usage = encode(self._counts.usage())
        return b"".join((self._begin, b'],"usage":', usage, b"}\n\n", DONE))

    def _closing(self) -> bytes:
        if self._usages == "each":
            return b'],"usage":' + encode(self._counts.usage()) + b"}\n\n"
        return self._end


def _usages(options: StreamOptions | None) -> Usages:
    if options is None or not options.include_usage:
        return "none"
    return "each" if options.continuous_usage_stats else "last"
