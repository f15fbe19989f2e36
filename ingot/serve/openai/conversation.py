"""Conversations as text and as tokens, where what people write stays what they wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from ingot.errors import RequestError, listed
from ingot.runtime.answers import AUTO, described
from ingot.runtime.marks import Marks, encode_marked, without_marks
from ingot.runtime.template_variables import OURS
from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.openai.fields import FieldError
from ingot.serve.openai.params import Terms
from ingot.serve.openai.requests import ChatRequest, TokenizeRequest

Request = ChatRequest | TokenizeRequest


class Rendered(Struct, frozen=True):
    """Prompt that a template renders from a conversation. `mark` breaks the spellings of special
    tokens that the client wrote, so that they differ from those that the template writes."""

    text: str
    mark: str = ""

    @property
    def plain(self) -> str:
        """The text without marks."""
        return without_marks(self.text, self.mark)


def encoded(request: Request, rendered: Rendered, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a rendered conversation. What the client wrote becomes no special token.

    The template writes the special tokens of the beginning itself, unless a client knows better.
    """
    special = request.add_special_tokens is True
    return encode_marked(tokenizer, rendered.text, rendered.mark, add_special_tokens=special)


def template_of(request: Request, tokenizer: Tokenizer, terms: Terms) -> str:
    """The source of the template for a conversation: of the request, of the server, or of the
    model. Raises FieldError where there is none."""
    with _blaming_messages():
        return tokenizer.template(_given(request, terms), with_tools=True)


def rendered(request: Request, tokenizer: Tokenizer, terms: Terms) -> Rendered:
    """Renders a conversation by its template. Raises RequestError."""
    own = request.chat_template
    known = own is None or own in tokenizer.chat_templates
    if not (known or terms.trusts_request_template):
        raise FieldError(
            "chat_template",
            "chat_template: this server takes no templates of requests, but names of the model's",
            hint=f"The model has {listed(list(tokenizer.chat_templates)) or 'none'}. Or start the "
            "server with --trust-request-chat-template.",
        )
    given = (request.messages, request.tools, request.chat_template_kwargs,
             getattr(request, "documents", None))  # fmt: skip
    marker = Marks(tokenizer.special_spellings, given)
    template = template_of(request, tokenizer, terms)
    continues = bool(request.continue_final_message)
    begins = request.add_generation_prompt
    choice = request.tool_choice if isinstance(request, ChatRequest) else None
    tools = None if choice == "none" else marker.marked(request.tools) or None
    messages = marker.marked(_conversation(request.messages or [], template))
    render: described.Render = partial(
        tokenizer.apply_chat_template,
        chat_template=_given(request, terms),
        add_generation_prompt=not continues if begins is None else begins,
        continue_final_message=continues,
        fills_silence=True,
        **{**_switch(request, tokenizer, terms), **marker.marked(_variables(request))},
    )
    messages = terms.chats.with_system(messages)
    describes = terms.tool_call_parser in (AUTO, described.FORMAT.name)
    with _blaming_messages():
        text = (
            described.rendered(render, messages, tools, template=template)
            if describes
            else render(messages, tools=tools)
        )
    if not describes:
        _refuse_ignored(render, messages, tools, choice)
    return Rendered(text, marker.mark)


def _refuse_ignored(
    render: described.Render, messages: list[dict[str, Any]], tools: Any, choice: Any
) -> None:
    """Raises FieldError for tools that a template ignores. How a parser of the operator's choice
    has calls written is not known to a description."""
    if tools and choice in (None, "auto") and described.ignores(render, messages, tools):
        raise FieldError(
            "tools",
            "the model's chat template ignores tools",
            hint='Describe them in a message, or ask for a call: "tool_choice": "required". Or '
            "start the server without --tool-call-parser, and it describes them.",
        )


def _given(request: Request, terms: Terms) -> str | None:
    """The template that a request or the server has instead of the model's."""
    return terms.chats.template if request.chat_template is None else request.chat_template


def _switch(request: Request, tokenizer: Tokenizer, terms: Terms) -> dict[str, bool]:
    """Variables that say whether the model thinks; a client's own template gets its own alone."""
    if request.chat_template is not None:
        return {}
    with _blaming_messages():
        return tokenizer.thinking_switch(terms.chats.thinks, terms.chats.template)


@contextmanager
def _blaming_messages() -> Iterator[None]:
    """Raises a RequestError of the block as a FieldError."""
    try:
        yield
    except RequestError as error:
        raise FieldError("messages", error.found, hint=error.hint) from error


def _variables(request: Request) -> dict[str, Any]:
    """Variables of the template besides the conversation. Raises FieldError."""
    variables = dict(request.chat_template_kwargs or {})
    if ours := sorted(OURS.intersection(variables)):
        raise FieldError(
            f"chat_template_kwargs.{ours[0]}",
            f"chat_template_kwargs has {ours[0]!r}, which is no variable of a template",
            hint="Give it as a field of the request.",
        )
    if isinstance(request, ChatRequest):
        if request.documents is not None:
            variables["documents"] = request.documents
        if request.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", request.reasoning_effort)
    return variables


def _conversation(messages: list[dict[str, Any]], template: str) -> list[dict[str, Any]]:
    """Messages of the form that templates expect. Raises FieldError with the path."""
    _check(messages)
    return [_readable(message, template) for message in messages]


def _readable(message: dict[str, Any], template: str) -> dict[str, Any]:
    """A message as templates read it: arguments of calls are objects, and no text; refusals are
    text; a template that does not know developers takes them for the system."""
    if message["role"] == "developer" and "developer" not in template:
        message = {**message, "role": "system"}
    message = {**message, "content": _content(message)}
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _content(message: dict[str, Any]) -> Any:
    """The content of a message, in which what an assistant has refused is what it said."""
    content = message.get("content")
    if content is None:
        return message.get("refusal")
    return [_part(part) for part in content] if isinstance(content, list) else content


def _part(part: Any) -> Any:
    is_refusal = isinstance(part, dict) and part.get("type") == "refusal"
    return {"type": "text", "text": part.get("refusal")} if is_refusal else part


def _with_object(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = function.get("arguments") or "{}"  # a call may have none
    if not isinstance(arguments, str):
        return call
    try:
        parsed = msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):  # what a model wrote need not be JSON
        return call
    return {**call, "function": {**function, "arguments": parsed}}


def _check(messages: list[dict[str, Any]]) -> None:
    """Raises FieldError with the path of what no template could read."""
    for number, message in enumerate(messages):
        path = f"messages[{number}]"
        if not isinstance(message.get("role"), str):
            raise FieldError(f"{path}.role", f"{path}.role is missing, or no text")
        content = message.get("content")
        if content is not None and not isinstance(content, (str, list)):
            raise FieldError(f"{path}.content", f"{path}.content is no text, list of parts or null")
