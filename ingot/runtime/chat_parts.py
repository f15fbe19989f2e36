"""Contents of messages that are lists of parts: `[{"type": "text", "text": "..."}]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ingot.errors import RequestError

Chat = list[dict[str, Any]]

_NEEDLE = "WHERE-THE-TEXT-IS"
_PROBE = [{"type": "text", "text": _NEEDLE}]
_PROBES = [{"role": role, "content": _PROBE} for role in ("user", "assistant", "user")]


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
    """Whether a template writes the texts of parts, and not the parts as JSON or Python."""
    try:
        text = render([dict(message) for message in _PROBES])
    except RequestError:
        return False
    return _NEEDLE in text and f"'{_NEEDLE}'" not in text and f'"{_NEEDLE}"' not in text
