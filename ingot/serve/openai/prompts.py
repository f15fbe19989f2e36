"""Prompts of requests as tokens. It tokenises and renders templates: not for an event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from ingot.errors import RequestError
from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.engine import ModelFacts
from ingot.serve.openai.fields import MAX_PROMPTS, FieldError
from ingot.serve.openai.requests import ChatRequest, CompletionRequest, TokenizeRequest

# A prompt with more characters for each token of the context than this cannot fit, and is refused
# before it is tokenised.
MAX_CHARS_PER_TOKEN = 8
# What a template gets under these names is ours to say.
_OURS = frozenset(
    "messages tools documents chat_template add_generation_prompt continue_final_message "
    "tokenize return_dict".split()
)


class Prompt(Struct, frozen=True):
    """A prompt as text and as tokens; `text` is None where the client gave tokens."""

    token_ids: list[int]
    text: str | None = None


def completion_prompts(
    request: CompletionRequest, tokenizer: Tokenizer | None, facts: ModelFacts
) -> list[Prompt]:
    """The prompts of a completion; texts need a tokenizer. Raises RequestError."""
    special = request.add_special_tokens is not False
    prompts = [
        _from_text(each, tokenizer, facts, "prompt", special)
        if isinstance(each, str) and tokenizer is not None
        else Prompt(_known(each, facts))
        for each in _each_prompt(request.prompt)
    ]
    return [_fitting(each, request.truncate_prompt_tokens, facts, "prompt") for each in prompts]


def chat_prompt(
    request: ChatRequest, tokenizer: Tokenizer, facts: ModelFacts, *, trusts_template: bool
) -> Prompt:
    """The prompt of a conversation. Raises RequestError."""
    text = rendered(request, tokenizer, trusts_template=trusts_template)
    # The template writes the special tokens itself, unless a client knows better.
    special = request.add_special_tokens is True
    prompt = _from_text(text, tokenizer, facts, "messages", special)
    return _fitting(prompt, request.truncate_prompt_tokens, facts, "messages")


def rendered(
    request: ChatRequest | TokenizeRequest, tokenizer: Tokenizer, *, trusts_template: bool
) -> str:
    """The text that the model's template makes of a conversation. Raises RequestError."""
    if request.chat_template is not None and not trusts_template:
        raise FieldError(
            "chat_template",
            "chat_template: this server takes no templates of requests",
            hint="Leave it out, or start the server with --trust-request-chat-template.",
        )
    continues = bool(request.continue_final_message)
    begins = request.add_generation_prompt
    choice = request.tool_choice if isinstance(request, ChatRequest) else None
    tools = None if choice == "none" else request.tools or None
    render = partial(
        tokenizer.apply_chat_template,
        _conversation(
            request.messages or [], request.chat_template or tokenizer.chat_template or ""
        ),
        chat_template=request.chat_template,
        add_generation_prompt=not continues if begins is None else begins,
        continue_final_message=continues,
        **_variables(request),
    )
    try:
        text = render(tools=tools)
    except RequestError as error:
        raise FieldError("messages", error.found, hint=error.hint) from error
    if tools and choice in (None, "auto") and _gives(render, text):
        raise FieldError(
            "tools",
            "the model's chat template ignores tools",
            hint='Describe them in a message, or ask for a call: "tool_choice": "required".',
        )
    return text


def _gives(render: Callable[[], str], text: str) -> bool:
    try:
        return render() == text
    except RequestError:  # a template that insists on tools
        return False


def _variables(request: ChatRequest | TokenizeRequest) -> dict[str, Any]:
    """What the template gets besides the conversation. Raises FieldError."""
    variables = dict(request.chat_template_kwargs or {})
    if ours := sorted(_OURS.intersection(variables)):
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
    """A message as templates read it: arguments of calls are objects, and no text; a template that
    does not know developers takes them for the system."""
    if message["role"] == "developer" and "developer" not in template:
        message = {**message, "role": "system"}
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments, str):
        return call
    try:
        parsed = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
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


def _each_prompt(given: str | Sequence[Any]) -> list[str | list[int]]:
    """The prompts of a request: a text, tokens, or a list of either. Raises FieldError."""
    if isinstance(given, str):
        return [given]
    if all(isinstance(each, int) for each in given):
        return [[*given]]
    if len(given) > MAX_PROMPTS:
        raise FieldError("prompt", f"prompt has {len(given)} prompts; at most {MAX_PROMPTS}")
    kind = type(given[0])
    for number, each in enumerate(given):
        if not isinstance(each, kind):
            raise FieldError(
                f"prompt[{number}]",
                "prompt mixes kinds",
                hint="Give a text, a list of texts, tokens, or a list of token lists.",
            )
    return [*given]


def _from_text(
    text: str, tokenizer: Tokenizer, facts: ModelFacts, param: str, special: bool
) -> Prompt:
    most = facts.max_model_len * MAX_CHARS_PER_TOKEN
    if len(text) > most:
        raise FieldError(
            param,
            f"This model's maximum context length is {facts.max_model_len} tokens; the prompt has "
            f"{len(text)} characters, of which at most {most} are looked at",
            code="context_length_exceeded",
        )
    return Prompt(tokenizer.encode(text, add_special_tokens=special), text)


def _known(token_ids: str | list[int], facts: ModelFacts) -> list[int]:
    assert not isinstance(token_ids, str), "texts come with a tokenizer"
    largest = max(token_ids, default=0)
    if largest >= facts.vocab_size:
        raise FieldError(
            "prompt",
            f"the prompt has token {largest}",
            hint=f"The vocabulary has the tokens 0 to {facts.vocab_size - 1}.",
        )
    return token_ids


def _fitting(prompt: Prompt, kept: int | None, facts: ModelFacts, param: str) -> Prompt:
    """A prompt that leaves room for a token; with `kept`, its last tokens. Raises FieldError."""
    room = facts.max_model_len - 1
    if kept is not None:
        kept = room if kept == -1 else kept
        if kept < len(prompt.token_ids):
            prompt = Prompt(prompt.token_ids[-kept:] if kept else [])
    count = len(prompt.token_ids)
    if not count:
        raise FieldError(param, f"{param} has no tokens", hint="Give at least one.")
    if count > room:
        raise FieldError(
            param,
            f"This model's maximum context length is {facts.max_model_len} tokens, and a "
            f"completion needs one of them; the prompt has {count}",
            hint="Shorten it, or let truncate_prompt_tokens do so.",
            code="context_length_exceeded",
        )
    return prompt
