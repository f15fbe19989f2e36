"""Tools, calls and results in words, for chat templates that know nothing of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Protocol

from ingot.errors import RequestError
from ingot.runtime.answers.formats import BY_NAME
from ingot.runtime.answers.style import Style

_log = logging.getLogger(__name__)
FORMAT = BY_NAME["hermes"]
# As templates of the Hermes family write it, which most models have read.
_BEFORE = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
_AFTER = """
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""

Message = Mapping[str, Any]
Messages = Sequence[Message]
Tools = Sequence[Mapping[str, Any]]


class Render(Protocol):
    """Renders a conversation by a chat template. Raises RequestError for one that it refuses."""

    def __call__(self, messages: Messages, *, tools: Tools | None) -> str: ...


def rendered(render: Render, messages: Messages, tools: Tools | None, *, template: str) -> str:
    """The prompt of a conversation.

    A template that ignores the tools has them described in the system message, or where it takes
    none in the user's first; calls and results in the conversation are text then. They are, too,
    where a template refuses them or leaves them out. `template` is what a note of it is about.

    Raises RequestError for a conversation that the template refuses, and where it lets nothing of
    the tools through.
    """
    in_words = told(messages)
    if tools and ignores(render, in_words, tools):
        _note(template)
        return _described(render, in_words, tools)
    if in_words != messages and not tools and _loses(render, messages):
        return render(in_words, tools=None)
    return render(messages, tools=tools)


def described_style(style: Style, prompt: str, tools: Tools | None) -> Style:
    """The style of answers to a prompt, which may describe the tools in words."""
    if tools and instructions(tools) in prompt:
        return replace(style, format=FORMAT)
    return style


def instructions(tools: Tools) -> str:
    """What is told of tools and their calls."""
    return _BEFORE + "\n".join(json.dumps(each, ensure_ascii=False) for each in tools) + _AFTER


def told(messages: Messages) -> Messages:
    """A conversation with its calls and results as texts of the assistant and the user.

    Results, and what the user says behind them, are one message: many templates insist on turns.
    """
    if not isinstance(messages, (list, tuple)) or not any(map(_is_of_tools, messages)):
        return messages
    found: list[Message] = []
    after_result = False
    for message in messages:
        is_result = isinstance(message, Mapping) and message.get("role") == "tool"
        is_user = isinstance(message, Mapping) and message.get("role") == "user"
        new = _in_words(message) if _is_of_tools(message) else message
        if after_result and (is_result or is_user):
            between = "\n" if is_result else "\n\n"
            text = f"{found[-1]['content']}{between}{_text(new.get('content'))}"
            found[-1] = {**found[-1], "content": text}
        else:
            found.append(new)
        after_result = is_result
    return found


def _is_of_tools(message: Any) -> bool:
    if not isinstance(message, Mapping):
        return False
    return message.get("role") == "tool" or bool(message.get("tool_calls"))


def _in_words(message: Message) -> Message:
    if message.get("role") == "tool":
        text = f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>"
        return {"role": "user", "content": text}
    calls = message["tool_calls"]
    parts = [_call(each) for each in calls] if isinstance(calls, (list, tuple)) else []
    if said := _text(message.get("content")):
        parts.insert(0, said)
    left = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**left, "content": "\n".join(parts)}


def _call(call: Any) -> str:
    """A call in the form that is asked for. What a model has written need not be JSON."""
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    name, arguments = function.get("name"), function.get("arguments")
    written = arguments if isinstance(arguments, str) else _json(arguments or {})
    return f'<tool_call>\n{{"name": {_json(name)}, "arguments": {written or "{}"}}}\n</tool_call>'


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"a call of a tool is no JSON: {error}") from error


def _text(content: Any) -> str:
    """The text of a message, or of its parts; data of another kind as JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, (list, tuple)) and all(
        isinstance(each, Mapping) and isinstance(each.get("text"), str) for each in content
    ):
        return "\n".join(each["text"] for each in content)
    return _json(content)


def _described(render: Render, messages: Messages, tools: Tools) -> str:
    text = instructions(tools)
    for way in (_in_system, _in_first_user):
        try:
            prompt = render(way(messages, text), tools=None)
        except RequestError:
            continue
        if text in prompt:
            return prompt
    render(messages, tools=None)  # raises where it is not the tools that are refused
    raise RequestError(
        "the chat template ignores tools, and their description as well",
        hint="Pass a chat_template=... that writes them.",
    )


def _in_system(messages: Messages, text: str) -> Messages:
    first = messages[0]
    if first.get("role") not in ("system", "developer"):
        return [{"role": "system", "content": text}, *messages]
    return [_joined(first, _text(first.get("content")), text), *messages[1:]]


def _in_first_user(messages: Messages, text: str) -> Messages:
    users = (place for place, each in enumerate(messages) if each.get("role") == "user")
    place = next(users, None)
    if place is None:
        return messages
    user = messages[place]
    new = _joined(user, text, _text(user.get("content")))
    return [*messages[:place], new, *messages[place + 1 :]]


def _joined(message: Message, *texts: str) -> Message:
    return {**message, "content": "\n\n".join(filter(None, texts))}


def ignores(render: Render, messages: Messages, tools: Tools) -> bool:
    """Returns whether a template says the same without tools."""
    try:
        text = render(messages, tools=tools)
    except RequestError:
        return False
    return _gives(partial(render, messages, tools=None), text)


def _loses(render: Render, messages: Messages) -> bool:
    """Returns whether a template refuses calls or results, or leaves them out."""
    try:
        text = render(messages, tools=None)
    except RequestError:
        return True
    calls = [_without(each, "tool_calls") if each.get("tool_calls") else each for each in messages]
    results = [
        _without(each, "content") if each.get("role") == "tool" and each.get("content") else each
        for each in messages
    ]
    return any(
        changed != messages and _gives(partial(render, changed, tools=None), text)
        for changed in (calls, results)
    )


def _without(message: Message, name: str) -> Message:
    """A message without calls or text; one that says nothing need not be one with calls."""
    left = {key: value for key, value in message.items() if key != name}
    return {**left, "content": left.get("content") or ""}


def _gives(render: Callable[[], str], text: str) -> bool:
    try:
        return render() == text
    except RequestError:  # a template that insists on what it was given before
        return False


@lru_cache(maxsize=64)
def _note(template: str) -> None:
    """Says once of each template that it ignores tools."""
    _log.warning(
        "the chat template ignores tools: they are described in a message, and calls are read in "
        "the format of %s",
        FORMAT.name,
    )
