"""`ingot pull`: download a model from the hub."""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote

from ingot.cli.arguments import REVISION, Argument, Arguments
from ingot.cli.numbers import format_bytes
from ingot.cli.output import command, facts, print_json

NAME = "pull"
SUMMARY = "download a model from the hub, or what is new of it"
ARGUMENTS: Arguments = (
    Argument("name NAME", "a model on the hub, such as Qwen/Qwen3-0.6B"),
    REVISION,
)


def main(args: argparse.Namespace) -> int:
    """Downloads what ingot reads of a model on the Hugging Face Hub into the hub's own cache:
    config, tokenizer and safetensors. Run again, it goes on where it was stopped, and fetches what
    is new. Other verbs download a model when they are first given its name."""
    from ingot.hub import pull

    folder = pull(args.name, args.revision)
    nbytes = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    if args.json:
        print_json({"name": args.name, "commit": folder.name, "path": folder, "nbytes": nbytes})
    else:
        print(summary(args.name, args.revision, folder, nbytes))
    return 0


def summary(name: str, revision: str | None, folder: Path, nbytes: int) -> str:
    """What is there now, and the command to go on with."""
    rows = (("size", format_bytes(nbytes)), ("commit", folder.name), ("folder", folder))
    option = f" --revision {quote(revision)}" if revision else ""
    following = f'Next: {command()} run {quote(name)}{option} "Once upon a time"'
    return f"{name}\n{facts(rows)}\n\n{following}"
