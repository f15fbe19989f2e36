"""Commands that a user can enter instead of a message."""

from __future__ import annotations

import os
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from ingot.cli.chat.chat import Chat, note
from ingot.cli.chat.conversation import Conversation, load, save
from ingot.cli.output import facts
from ingot.errors import UsageError

NONE = "none"


class Leave(Exception):
    """The user leaves."""


def help_text() -> str:
    """Help on everything that can be entered."""
    return facts([*((usage(command), command.meaning) for command in COMMANDS), *KEYS])


def usage(command: Command) -> str:
    """Spelling of a command."""
    return f"{command.name} {command.argument}".strip()


def obey(chat: Chat, name: str, text: str) -> None:
    """Carries out a command. Raises UsageError for an unknown one, and for a wrong argument."""
    command = next((each for each in COMMANDS if each.name == name), None)
    if command is None:
        near = get_close_matches(name, [each.name for each in COMMANDS], 1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"there is no command {name}",
            hint=f"{hint}/help lists them. A message can begin with / after a space.",
        )
    if text and not command.argument:
        raise UsageError(f"{name} takes no argument", hint=f"Enter {name} alone.")
    if not text and command.argument and not command.argument.startswith("["):
        raise UsageError(f"{name} needs an argument", hint=f"Enter {usage(command)}.")
    command.act(chat, text)


def _help(chat: Chat, text: str) -> None:
    note(help_text())


def _leave(chat: Chat, text: str) -> None:
    raise Leave


def _system(chat: Chat, text: str) -> None:
    if text and text != NONE:
        chat.partner.check_system()
    if text:
        chat.conversation.system = "" if text == NONE else text
    note(chat.conversation.system or "(There is no system message.)")


def _clear(chat: Chat, text: str) -> None:
    chat.conversation.messages.clear()
    note("(Forgotten.)")


def _save(chat: Chat, text: str) -> None:
    path = _path(text)
    save(chat.conversation, path)
    note(f"(Saved {_count(chat.conversation)} to {path}.)")


def _load(chat: Chat, text: str) -> None:
    before, chat.conversation = chat.conversation, load(_path(text))
    try:
        num_tokens = chat.num_tokens()
    except BaseException:  # a template that refuses them, or Ctrl-C
        chat.conversation = before
        raise
    share = "" if num_tokens is None else f": {_share(chat, num_tokens)}"
    note(f"(Loaded {_count(chat.conversation)}{share}.)")


def _stats(chat: Chat, text: str) -> None:
    figures = chat.figures(chat.last).rows() if chat.last else []
    note(facts([*figures, ("context", _share(chat, _used(chat)))], indent=""))


def _set(chat: Chat, text: str) -> None:
    name, *value = text.split(maxsplit=1) or [""]
    if name and not value:
        raise UsageError(f"/set {name} needs a value", hint="/set alone shows all settings.")
    if name:
        chat.options.set(name, *value)
    note(facts(row for row in chat.options.rows() if name in ("", row[0])))


def _path(text: str) -> Path:
    return Path(os.path.expanduser(text))  # Path's own raises for users that there are not


def _count(conversation: Conversation) -> str:
    return f"{len(conversation.messages)} messages"


def _used(chat: Chat) -> int | None:
    """Tokens of the conversation; of the last answer, where nobody counts them otherwise."""
    counted = chat.num_tokens()
    return counted if counted is not None or chat.last is None else chat.last.num_tokens


def _share(chat: Chat, num_tokens: int | None) -> str:
    used = "unknown" if num_tokens is None else str(num_tokens)
    most = chat.partner.max_model_len
    return f"{used}{'' if most is None else f' of {most}'} tokens"


class Command(NamedTuple):
    """A command. An argument in brackets can be left out."""

    name: str
    argument: str
    meaning: str
    act: Callable[[Chat, str], None]


COMMANDS = (
    Command("/help", "", "list what can be entered", _help),
    Command("/bye", "", "leave", _leave),
    Command("/system", "[TEXT]", f"show or set the system message; `{NONE}` removes it", _system),
    Command("/clear", "", "forget what was said, but not the system message", _clear),
    Command("/save", "FILE", "write the conversation into a JSON file", _save),
    Command("/load", "FILE", "go on with the conversation of a file", _load),
    Command("/stats", "", "speed of the last answer; how much of the context is used", _stats),
    Command("/set", "[NAME VALUE]", "show the settings, or change one; `default` resets it", _set),
)
KEYS = (
    ("\\", "at the end of a line: go on in the next"),
    ('"""', "begins and ends a text of several lines"),
    ("Ctrl-C", "stop an answer or drop a line; leave, after another Ctrl-C on an empty line"),
    ("Ctrl-D", "leave"),
)
