"""Parts of an answer: text, reasoning and calls of tools, whole or piece by piece."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field


class CallDelta(Struct, omit_defaults=True):
    """A piece of call `index`. The first has its `id` and `name`, and no arguments yet."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


class AnswerDelta(Struct, omit_defaults=True):
    """Next piece of an answer: text, reasoning before it, or a piece of a call."""

    content: str = ""
    reasoning: str = ""
    call: CallDelta | None = None


class WrittenCall(Struct):
    """A call of a tool; `arguments` are the text of JSON, as the model wrote it."""

    id: str
    name: str
    arguments: str = ""


class AnswerMessage(Struct):
    """A whole answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[WrittenCall] = field(default_factory=list)


def join(deltas: Iterable[AnswerDelta]) -> AnswerMessage:
    """The answer that deltas make together."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[WrittenCall] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        content.append(delta.content)
        reasoning.append(delta.reasoning)
        if delta.call is None:
            continue
        if delta.call.id is not None:
            calls.append(WrittenCall(delta.call.id, delta.call.name or ""))
            arguments.append([])
        arguments[delta.call.index].append(delta.call.arguments)
    for call, parts in zip(calls, arguments, strict=True):
        call.arguments = "".join(parts)
    return AnswerMessage("".join(content), "".join(reasoning), calls)
