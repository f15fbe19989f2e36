"""Chat templates: the same bytes as transformers' `apply_chat_template`, in a sandbox."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2.meta

from ingot.errors import RequestError
from ingot.runtime.chat_sandbox import Environment
from ingot.runtime.chat_sizes import MAX_PROMPT_CHARS
from ingot.runtime.field_checks import check_unicode

Chat = list[dict[str, Any]]

_NEEDLE = "WHERE-THE-TEXT-IS"
_PROBE = [{"type": "text", "text": _NEEDLE}]
_PROBES = [{"role": role, "content": _PROBE} for role in ("user", "assistant", "user")]
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
# Variables by which templates are told whether the model thinks before it answers.
_SWITCHES = ("enable_thinking", "thinking")

# How templates ask whether a message has no text. Others would take None for one.
_NONE = re.compile(r"""content['"]?\]?\s+(is\s+(not\s+)?|[=!]=\s*)none""", re.IGNORECASE | re.ASCII)


class ChatTemplate:
    """A compiled template. Raises RequestError for one that is not valid."""

    def __init__(self, source: str) -> None:
        self._environment = Environment()
        try:
            read = jinja2.meta.find_undeclared_variables(self._environment.parse(source))
            self._template = self._environment.from_string(source)
        except Exception as error:  # also those of Python, whose code it becomes
            raise RequestError(f"the chat template is not valid: {error}") from error
        self._tells_none = _NONE.search(source) is not None
        self._switches = [name for name in _SWITCHES if name in read]

    def switched(self, thinks: bool) -> dict[str, bool]:
        """Variables by which the model thinks before it answers, or does not. One that always
        thinks needs none. Raises RequestError where it cannot be kept from it."""
        if not (thinks or self._switches):
            raise RequestError(
                "the chat template has no switch for thinking",
                hint=f"It would read one of the variables {', '.join(_SWITCHES)}.",
            )
        return dict.fromkeys(self._switches, thinks)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        fills_silence: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt. Raises RequestError when the template refuses the conversation.

        With `fills_silence` a message needs no content: a template that tells calls by a content of
        None gets one, and one that fails on a message without text gets an empty text.
        """
        variables = {
            "tools": None if tools is None else _plain(list(tools)),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **_plain(variables),
        }
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt are both set",
                hint="A prompt either continues a message or begins a new one.",
            )
        chat = _conversation(messages)
        silent = [each for each in chat if "content" not in each] if fills_silence else []
        if self._tells_none:
            for message in silent:
                message["content"] = None
        try:
            return self._prompt(chat, variables, continues=continue_final_message)
        except RequestError:
            if not silent:
                raise
        # A template that joins texts fails on a message without one, such as one that calls tools.
        for message in silent:
            message["content"] = ""
        return self._prompt(chat, variables, continues=continue_final_message)

    def _prompt(self, chat: Chat, variables: Mapping[str, Any], *, continues: bool) -> str:
        chat = readable_parts(chat, lambda chat: self._text(chat, variables))
        if continues:
            final = _tag_final_message(chat)
        prompt = self._text(chat, variables)
        return _cut_at_tag(prompt, final) if continues else prompt

    def _text(self, chat: Chat, variables: Mapping[str, Any]) -> str:
        pieces, size = [], 0
        self._environment.begin()
        try:
            for piece in self._template.generate(messages=chat, **variables):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_PROMPT_CHARS:
                    raise RequestError(f"the prompt is longer than {MAX_PROMPT_CHARS} characters")
        # A template is a program: whatever it raises, this request fails and nothing else.
        except RequestError:
            raise
        except Exception as error:
            raise RequestError(f"the chat template refuses the messages: {error}") from error
        return "".join(pieces)


def _conversation(messages: Sequence[Mapping[str, Any]]) -> Chat:
    """A plain copy of the messages, without keys whose value is None."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise RequestError("messages is empty or not a list", hint="Give a list of dicts.")
    chat = []
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(
                f"a message is {message!r:.80}", hint='Give {"role": "user", "content": "..."}.'
            )
        plain = _plain({key: value for key, value in message.items() if value is not None})
        # One value, the names that different templates read it by.
        reasoning = next((plain[n] for n in _REASONING_NAMES if plain.get(n) is not None), None)
        if reasoning is not None:
            plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
        chat.append(plain)
    return chat


def _plain(value: Any) -> Any:
    """A copy that is JSON and nothing else: the sandbox cannot know other objects' methods."""
    if isinstance(value, str):
        check_unicode(value)  # here, and not within the text that it becomes a part of
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise RequestError(
        f"a message holds a value of type {type(value).__name__}",
        hint="Messages and tools are made of str, int, float, bool, None, list and dict.",
    )


def _tag_final_message(chat: Chat) -> str:
    """Marks the end of the last message's text, and returns that text."""
    final = chat[-1].get("content")
    holder, key = chat[-1], "content"
    if isinstance(final, list):
        texts = [part for part in final if isinstance(part, dict) and "text" in part]
        holder, key = (texts[-1], "text") if texts else (holder, key)
        final = holder[key] if texts else None
    if not isinstance(final, str):
        raise RequestError("the final message has no text to continue")
    holder[key] = final + _TAG
    return final


def _cut_at_tag(prompt: str, final: str) -> str:
    tag = _TAG.strip()
    if tag not in prompt or final.strip() not in prompt:
        raise RequestError("the chat template leaves out the final message, which was to continue")
    at = prompt.rindex(tag)
    # A template that trims messages has also taken the tag's space: then the text is trimmed, too.
    kept = prompt[at : at + len(_TAG)] == _TAG
    return prompt[:at] if kept else prompt[:at].rstrip()


def readable_parts(chat: Chat, render: Callable[[Chat], str]) -> Chat:
    """The conversation with its parts as a template can read them; `render` is the template.

    A template that looks into parts gets them as they are, as transformers does it. For any other
    the texts of a message are joined by line breaks, as vLLM does it. Raises RequestError for
    parts that are no texts.
    """
    if not any(_parts(message) for message in chat):
        return chat
    for message in chat:
        for part in _parts(message):
            _check(part)
    if _reads_parts(render):
        return chat
    return [
        {**message, "content": "\n".join(part["text"] for part in parts)}
        if (parts := _parts(message))
        else message
        for message in chat
    ]


def _parts(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The parts of a message. A list of anything else is data, such as the result of a tool."""
    content = message.get("content")
    is_parts = isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("type"), str) for part in content
    )
    return content if is_parts and content else ()


def _check(part: Mapping[str, Any]) -> None:
    if part["type"] != "text":
        raise RequestError(
            f"a message has a part of the kind {part['type']!r:.80}",
            hint='Models take text alone: {"type": "text", "text": "..."}.',
        )
    if not isinstance(part.get("text"), str):
        raise RequestError(
            f"a part of a message is {part!r:.80}", hint='Give {"type": "text", "text": "..."}.'
        )


def _reads_parts(render: Callable[[Chat], str]) -> bool:
    """Returns whether a template writes the texts of parts, and not the parts as JSON or Python."""
    try:
        text = render([dict(message) for message in _PROBES])
    except RequestError:
        return False
    return _NEEDLE in text and f"'{_NEEDLE}'" not in text and f'"{_NEEDLE}"' not in text
