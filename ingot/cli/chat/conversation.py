"""The messages of a conversation, and the file that keeps them."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingot.errors import UsageError
from ingot.files import read_regular

Message = dict[str, str]

MAX_BYTES = 64 << 20
ROLES = ("system", "user", "assistant")


@dataclass
class Conversation:
    """A system message, which may be empty, and the messages after it."""

    system: str = ""
    messages: list[Message] = field(default_factory=list)

    def as_list(self) -> list[Message]:
        """All messages, in the form that chat templates take."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.messages]

    def with_message(self, text: str) -> list[Message]:
        """All messages, and then one of the user."""
        return [*self.as_list(), {"role": "user", "content": text}]

    def add(self, text: str, answer: str, thinking: str = "") -> None:
        """Appends a message of the user and the answer to it."""
        reply = {"role": "assistant", "content": answer}
        if thinking:
            reply["reasoning_content"] = thinking
        self.messages += [{"role": "user", "content": text}, reply]


def save(conversation: Conversation, path: Path) -> None:
    """Writes a conversation as a JSON list of messages, whole or not at all.

    Raises UsageError where it cannot be written, and for a file that holds something else.
    """
    text = json.dumps(conversation.as_list(), indent=2, ensure_ascii=False)
    part = path.parent / f".{path.name}.{os.getpid()}"
    try:
        if path.exists():
            load(path)
        part.write_bytes(f"{text}\n".encode(errors="replace"))
        part.replace(path)
    except UsageError as error:
        raise UsageError(
            f"{path} is there already, and is no conversation", hint="Choose another name."
        ) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be written: {_why(error)}") from error
    finally:
        with suppress(OSError, ValueError):
            part.unlink(missing_ok=True)


def load(path: Path) -> Conversation:
    """Reads what `save` has written. Raises UsageError for anything else."""
    try:
        messages = json.loads(read_regular(path, MAX_BYTES))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {_why(error)}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}", hint=_FORM) from error
    if not isinstance(messages, list) or not all(map(_is_message, messages)):
        raise UsageError(f"{path} is no conversation", hint=_FORM)
    system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
    if any(message["role"] == "system" for message in messages):
        raise UsageError(f"{path} has a system message that is not the first", hint=_FORM)
    return Conversation(system, messages)


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", error)).lower()


_FORM = 'A conversation is a list such as [{"role": "user", "content": "Hello."}], as /save writes.'


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("role") in ROLES
        and "content" in value
        and all(isinstance(text, str) for text in value.values())
    )
