"""Holds a conversation until the user leaves or the input ends.

He enters messages and commands, of one line or several.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from ingot.cli import failure
from ingot.cli.chat.chat import Chat, note
from ingot.cli.chat.commands import Leave, obey
from ingot.cli.chat.conversation import Conversation
from ingot.cli.chat.options import Options
from ingot.cli.chat.partner import Partner
from ingot.errors import IngotError
from ingot.settings import settings

PROMPT, CONTINUED = "> ", "... "
QUOTES = '"""'
HISTORY_LINES = 1000

_OPENING = re.compile(r'(/\S+\s+)?"""')

ReadLine = Callable[[str], str]


def converse(partner: Partner, args: argparse.Namespace, options: Options) -> int:
    """Answers what stdin says, on a terminal or piped; returns the exit code.

    What is refused ends nothing. Of piped input, the exit code is that of the last refusal.
    """
    terminal = sys.stdin.isatty()
    prompts = terminal and sys.stdout.isatty() and not args.json
    folder = settings().state_dir
    lines = Lines(prompts=prompts, edited=terminal, history=folder and folder / "history")
    chat = Chat(partner, args, options, Conversation(args.system or ""))
    if prompts:
        note(f"{partner.name}: /help lists the commands, Ctrl-D leaves.")
    code = _until_end(chat, lines, terminal)
    return 0 if terminal else code


def _until_end(chat: Chat, lines: Lines, terminal: bool) -> int:
    code = 0
    while True:
        try:
            entry = read_entry(lines.read)
            _take(chat, entry)
        except Leave:
            return code
        except EOFError:
            if terminal:
                note("")
            return code
        except IngotError as error:
            code = failure.report(error, chat.args, indent=None)
        except KeyboardInterrupt:
            if not terminal:
                raise
            leaves = lines.interrupted and lines.is_empty()
            note("" if leaves else "\n(Ctrl-C again leaves, and so does Ctrl-D.)")
            if leaves:
                return code
            lines.interrupted = True


def _take(chat: Chat, entry: ChatEntry) -> None:
    if entry.command:
        obey(chat, entry.command, entry.text)
    elif entry.text.strip():
        chat.say(entry.text)


class ChatEntry(NamedTuple):
    """A command with its argument; or, if `command` is empty, a message."""

    command: str
    text: str


def read_entry(read: ReadLine) -> ChatEntry:
    r"""Reads lines until an entry is whole; the end of input ends it, too.

    A line that ends with \ goes on in the next. A message, or the argument of a command, that
    begins with three quotes ends with them. `read` gets the prompt to show. Raises EOFError where
    there is no line.
    """
    line = read(PROMPT)
    opening = _OPENING.match(line)
    if opening:
        return ChatEntry((opening[1] or "").strip(), _quoted(line[opening.end() :], read))
    while line.endswith("\\"):
        line = f"{line[:-1]}\n{_next(read) or ''}"
    if not line.startswith("/"):
        return ChatEntry("", line)
    command, *text = line.split(maxsplit=1)
    return ChatEntry(command, "".join(text).strip())


def _quoted(text: str, read: ReadLine) -> str:
    """The text up to the closing quotes, which end a line."""
    while not text.rstrip().endswith(QUOTES):
        line = _next(read)
        if line is None:
            break
        text += f"\n{line}"
    return text.rstrip().removesuffix(QUOTES).strip("\n")


def _next(read: ReadLine) -> str | None:
    try:
        return read(CONTINUED)
    except EOFError:
        return None


class Lines:
    """Reads lines from stdin.

    Args:
        prompts: whether to show prompts.
        edited: whether the user can edit lines, and recall earlier ones, as on a terminal.
        history: the file that remembers edited lines, if there is a place for it.

    `interrupted` is for the caller to set; reading a line clears it.
    """

    def __init__(self, *, prompts: bool, edited: bool, history: Path | None) -> None:
        self._prompts = prompts
        self._history = history
        self._editor = _line_editor(history) if edited else None
        self.interrupted = False

    def read(self, prompt: str) -> str:
        """The next line. Raises EOFError where there is none."""
        known = self._editor.get_current_history_length() if self._editor else 0
        line = input(prompt if self._prompts else "").removesuffix("\r")  # of files of Windows
        self.interrupted = False
        if self._editor and self._history:
            new = self._editor.get_current_history_length() - known
            with suppress(OSError):  # nothing depends on the history
                self._editor.append_history_file(new, self._history)
        return line

    def is_empty(self) -> bool:
        """Tells whether the line that Ctrl-C has just ended was empty."""
        return not (self._editor and self._editor.get_line_buffer())


def _line_editor(history: Path | None) -> ModuleType | None:
    """The module that edits what `input` reads, where Python has it, with the lines of old."""
    try:
        import readline
    except ImportError:
        return None
    readline.set_history_length(HISTORY_LINES)
    if history:
        with suppress(OSError):
            history.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(history, os.O_CREAT | os.O_CLOEXEC, 0o600))
            readline.read_history_file(history)
    return readline
