"""`ingot chat`: hold a conversation with a model on a server."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.cli.arguments import Argument, Arguments
from ingot.cli.chat.options import OF_TEMPLATES, SAMPLING, STOP
from ingot.cli.numbers import human_int
from ingot.errors import UsageError
from ingot.files import read_regular
from ingot.settings import settings

if TYPE_CHECKING:
    from ingot.cli.chat.server import ChatServer

MAX_KEY_BYTES = 64 << 10
HERE = "http://127.0.0.1:8000"
URL = Argument("--url URL", f"where the server is (default: {HERE})")
KEY_FILE = Argument(
    "--api-key-file FILE",
    "a file whose first line is the key that the server asks for (default: INGOT_API_KEY)",
)
ARGUMENTS: Arguments = (
    URL,
    Argument("--model NAME", "which of its models (default: the first)"),
    KEY_FILE,
    Argument("--system TEXT", "the system message"),
    Argument("--max-tokens N", "most tokens of an answer (default: the server's)", human_int),
    STOP,
    *OF_TEMPLATES,
    Argument("--stats", "print the time to the first token and the speed after each answer"),
    SAMPLING._replace(description="Defaults are the server's."),
)


def main(args: argparse.Namespace) -> int:
    """Holds a conversation with a model on a server that has OpenAI's interface. On a terminal,
    /help lists what can be entered; each line of piped input is a message."""
    from ingot.cli.chat.loop import converse
    from ingot.cli.chat.options import ANSWER_OPTIONS, field_of
    from ingot.cli.chat.remote import RemoteOptions, RemotePartner, switch

    given = {field_of(each): getattr(args, field_of(each)) for each in ANSWER_OPTIONS}
    options = RemoteOptions(given, {}, switch)
    return converse(RemotePartner(server_of(args), args.model), args, options)


def server_of(args: argparse.Namespace) -> ChatServer:
    """The server that URL and KEY_FILE name. Raises UsageError."""
    from ingot.cli.chat.server import ChatServer

    return ChatServer(args.url or HERE, _key(args.api_key_file))


def _key(path: str | None) -> str | None:
    """The key in a file, or in the environment. Raises UsageError for one that cannot be read."""
    if path is None:
        return settings().api_key
    try:
        lines = read_regular(Path(path), MAX_KEY_BYTES).decode().splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"--api-key-file {path} cannot be read: {error}") from error
    key = lines[0].strip() if lines else ""
    if not key or not key.isascii() or not key.isprintable():
        raise UsageError(f"--api-key-file {path} has no key", hint="Put it on the first line.")
    return key
