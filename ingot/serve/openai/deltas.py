"""Deltas that chunks of a chat add to its message, and the message that they make together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import UNSET, Struct, UnsetType

from ingot.runtime.answers import AnswerDelta as Part
from ingot.runtime.answers import CallDelta, join
from ingot.serve.openai.answers import (
    ChatChoice,
    ChatLogprobs,
    FunctionCall,
    Message,
    ToolCall,
)


class FunctionDelta(Struct, kw_only=True):
    """A piece of a call: the name with the first, and then arguments."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(Struct, kw_only=True):
    """A piece of call `index`; the first has what the whole call is known by."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta


class Delta(Struct, kw_only=True, omit_defaults=True):
    """Delta of a message in a chunk."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class DeltaChoice(Struct, kw_only=True):
    """Delta of a choice in a chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


def delta_of(part: Part) -> Delta:
    """A part of an answer as OpenAI's API says it; reasoning under both names in use."""
    if part.call is not None:
        return Delta(tool_calls=[_call_delta(part.call)])
    if part.reasoning:
        return Delta(reasoning=part.reasoning, reasoning_content=part.reasoning)
    return Delta(content=part.content)


def _call_delta(call: CallDelta) -> ToolCallDelta:
    if call.id is None:
        return ToolCallDelta(index=call.index, function=FunctionDelta(arguments=call.arguments))
    function = FunctionDelta(name=call.name or "", arguments=call.arguments)
    return ToolCallDelta(index=call.index, id=call.id, type="function", function=function)


def whole_choice(index: int, deltas: list[DeltaChoice]) -> ChatChoice:
    """The choice that the chunks of a stream would make together."""
    last = deltas[-1]
    choice = ChatChoice(
        index=index,
        message=_message(each.delta for each in deltas),
        finish_reason=last.finish_reason,
        stop_reason=None if last.stop_reason is UNSET else last.stop_reason,
    )
    scores = [each.logprobs for each in deltas if each.logprobs is not None]
    if scores:
        choice.logprobs = ChatLogprobs([token for each in scores for token in each.content])
    ids = [each.token_ids for each in deltas if each.token_ids is not UNSET]
    if ids:
        choice.token_ids = [token for each in ids for token in each]
    return choice


def _message(deltas: Iterable[Delta]) -> Message:
    whole = join(_parts(deltas))
    message = Message(content=whole.content)
    if whole.calls:
        message.content = whole.content or None
        message.tool_calls = [
            ToolCall(id=each.id, function=FunctionCall(each.name, each.arguments))
            for each in whole.calls
        ]
    if whole.reasoning:
        message.reasoning = message.reasoning_content = whole.reasoning
    return message


def _parts(deltas: Iterable[Delta]) -> Iterator[Part]:
    for delta in deltas:
        yield Part(delta.content or "", delta.reasoning or "")
        for call in delta.tool_calls or ():
            name, arguments = call.function.name, call.function.arguments
            call_id = None if call.id is UNSET else call.id
            named = None if name is UNSET else name
            yield Part(call=CallDelta(call.index, arguments, call_id, named))
