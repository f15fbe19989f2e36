"""`ingot key`: make an API key for `ingot serve`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ingot.cli.arguments import Argument, Arguments
from ingot.cli.output import print_json
from ingot.errors import UsageError

ARGUMENTS: Arguments = (
    Argument("name NAME", "whose key it is; logs and limits of keys name it so"),
    Argument(
        "--scope",
        "use: ask models. admin: load and unload them as well (default: use)",
        choices=("use", "admin"),
        default="use",
    ),
    Argument("--file FILE", "the file of keys, to which the key's line is added", Path),
)


def main(args: argparse.Namespace) -> int:
    """Makes a key and prints it, once. The file gets the key's SHA-256, scope and name, and
    `ingot serve --api-key-file FILE` lets in who has the key. Without --file, the line is printed
    to stderr. A running server reads the file again at SIGHUP."""
    from ingot.serve.edge.keys import make_key

    text, key = make_key(args.name, args.scope)
    if args.file is not None:
        _add(args.file, args.name, key.line)
    elif not args.json:
        print(f"Add this line to the file of keys:\n{key.line}", file=sys.stderr)
    if args.json:
        print_json({"key": text, "line": key.line})
    else:
        print(text)
    return 0


def _add(path: Path, name: str, line: str) -> None:
    """Adds a line to the file of keys, which only its owner may read.

    Raises UsageError for a file that cannot be written, or that has the name already.
    """
    from ingot.serve.edge.keys import read_keys

    try:
        if path.exists() and path.stat().st_size:
            if any(key.name == name for key in read_keys(path)):
                raise UsageError(
                    f"{path} has a key of {name}", hint="Give another name, or delete its line."
                )
            ends = path.read_bytes().endswith(b"\n")
            line = line if ends else f"\n{line}"
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w") as file:
            file.write(f"{line}\n")
    except OSError as error:
        raise UsageError(f"the key cannot be added to {path}: {error.strerror}") from error
