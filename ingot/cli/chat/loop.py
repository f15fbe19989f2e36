"""Holds a conversation until the user leaves or the input ends."""

from __future__ import annotations

import argparse
import sys

from ingot.cli import failure
from ingot.cli.chat.chat import Chat, note
from ingot.cli.chat.commands import Leave, obey
from ingot.cli.chat.conversation import Conversation
from ingot.cli.chat.entries import ChatEntry, Lines, read_entry
from ingot.cli.chat.options import Options
from ingot.cli.chat.partner import Partner
from ingot.errors import IngotError
from ingot.settings import settings


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
