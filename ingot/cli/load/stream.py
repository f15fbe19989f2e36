"""Reads a stream of an OpenAI-compatible server, event by event, with times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import msgspec


class StreamedDelta(msgspec.Struct):
    """An event's addition to an answer of a conversation."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None


class StreamedChoice(msgspec.Struct):
    """An event of a completion."""

    text: str | None = None
    delta: StreamedDelta | None = None


class StreamedUsage(msgspec.Struct):
    """Tokens of a request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Event(msgspec.Struct):
    """An event of a stream, as far as it is read."""

    choices: list[StreamedChoice] = []
    usage: StreamedUsage | None = None
    error: Any = None


class ServerError(Exception):
    """Error that the server reports, as text."""


@dataclass(slots=True)
class RequestOutcome:
    """The outcome of one request; times in seconds. `error` is empty if it was answered."""

    start: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    ttft: float = 0.0
    latency: float = 0.0
    itl: list[float] = field(default_factory=list)
    text: str = ""
    error: str = ""


_DECODER = msgspec.json.Decoder(Event)


def payloads(rest: bytes, data: bytes) -> tuple[list[bytes], bytes]:
    """The `data` of the events that end in these bytes, and what comes after the last line."""
    *lines, rest = (rest + data).split(b"\n")
    return [line[5:].strip() for line in lines if line.startswith(b"data:")], rest


class StreamReader:
    """Takes the body of a streamed answer as it comes and notes when tokens came.

    An event with a choice counts as a token, as in vLLM; the first event of a conversation has a
    role and no text, and does not.
    """

    def __init__(self, outcome: RequestOutcome, clock: Callable[[], float] = perf_counter) -> None:
        self._outcome = outcome
        self._clock = clock
        self._rest = b""
        self._last = 0.0
        self._texts: list[str] = []

    def begin(self) -> None:
        """The request is being sent."""
        self._outcome.start = self._last = self._clock()

    def take(self, body: bytes) -> None:
        """Raises ServerError for an event that says that something went wrong."""
        now = self._clock()
        found, self._rest = payloads(self._rest, body)
        for payload in found:
            if payload != b"[DONE]":
                self._event(_DECODER.decode(payload), now)

    def end(self) -> None:
        """Nothing more comes. Raises ServerError for an answer without a token."""
        outcome = self._outcome
        if not outcome.ttft:
            raise ServerError("the answer has no token")
        outcome.text = "".join(self._texts)
        outcome.latency = self._last - outcome.start
        outcome.output_tokens = outcome.output_tokens or 1 + len(outcome.itl)

    def _event(self, event: Event, now: float) -> None:
        outcome = self._outcome
        if event.error is not None:
            raise ServerError(said(event.error))
        if event.usage is not None:
            outcome.prompt_tokens = event.usage.prompt_tokens
            outcome.output_tokens = event.usage.completion_tokens
        for text in filter(None, map(_text, event.choices)):
            self._texts.append(text)
        if not any(map(_has_token, event.choices)):
            return
        if outcome.ttft:
            outcome.itl.append(now - self._last)
        else:
            outcome.ttft = now - outcome.start
        self._last = now


def _text(choice: StreamedChoice) -> str | None:
    if choice.delta is None:
        return choice.text
    return choice.delta.content or choice.delta.reasoning or choice.delta.reasoning_content


def _has_token(choice: StreamedChoice) -> bool:
    """Tells whether an event has a token. In a completion a token may leave no text."""
    if choice.delta is None:
        return choice.text is not None
    return bool(_text(choice) or choice.delta.tool_calls)


def said(error: Any) -> str:
    """Message of an answer's `error`, in whatever shape."""
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error)


def explain(status: int, body: bytes) -> str:
    """Explains what went wrong, of an answer that is no stream."""
    try:
        found = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        found = body.decode("utf-8", "replace")
    if isinstance(found, dict):
        found = said(found.get("error") or found.get("detail") or found)
    return f"HTTP {status}: {str(found)[:300]}"
