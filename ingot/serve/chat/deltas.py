"""What an answer consists of: text, reasoning and calls of tools, whole or piece by piece."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field


class CallDelta(Struct, omit_defaults=True):
    """A piece of call `index`. The first has its `id` and `name`, and no arguments yet."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


class Delta(Struct, omit_defaults=True):
    """What came next: text of the answer, reasoning before it, or a piece of a call."""

    content: str = ""
    reasoning: str = ""
    call: CallDelta | None = None


class Call(Struct):
    """A call of a tool; `arguments` are the text of JSON, as the model wrote it."""

    id: str
    name: str
    arguments: str = ""


class Message(Struct):
    """A whole answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)


def join(deltas: Iterable[Delta]) -> Message:
    """The answer that deltas make together."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[Call] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        content.append(delta.content)
        reasoning.append(delta.reasoning)
        if delta.call is None:
            continue
        if delta.call.id is not None:
            calls.append(Call(delta.call.id, delta.call.name or ""))
            arguments.append([])
        arguments[delta.call.index].append(delta.call.arguments)
    for call, parts in zip(calls, arguments, strict=True):
        call.arguments = "".join(parts)
    return Message("".join(content), "".join(reasoning), calls)
