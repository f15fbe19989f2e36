"""`ingot pull`: download a model from the hub."""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote

from ingot.cli.arguments import REVISION, Argument, Arguments
from ingot.cli.numbers import format_bytes
from ingot.cli.output import command, facts, print_json

ARGUMENTS: Arguments = (
    Argument("name NAME", "a model on the hub, such as Qwen/Qwen3-0.6B or OWNER/REPO:Q8_0"),
    REVISION,
)


def main(args: argparse.Namespace) -> int:
    """Downloads what ingot reads of a model on the Hugging Face Hub into the hub's own cache:
    config, tokenizer and safetensors, or a GGUF file. Run again, it goes on where it was stopped,
    and fetches what is new. Other verbs download a model when they are first given its name."""
    from ingot.hub.names import pull
    from ingot.hub.snapshots import model_size

    model = pull(args.name, args.revision)
    folder = next((f for f in (model, *model.parents) if f.parent.name == "snapshots"), model)
    nbytes = model_size(model)
    if args.json:
        print_json({"name": args.name, "commit": folder.name, "path": model, "nbytes": nbytes})
    else:
        print(summary(args.name, args.revision, model, folder.name, nbytes))
    return 0


def summary(name: str, revision: str | None, model: Path, commit: str, nbytes: int) -> str:
    """Summary of what is there now, and the command to go on with."""
    where = "folder" if model.is_dir() else "file"
    rows = (("size", format_bytes(nbytes)), ("commit", commit), (where, model))
    option = f" --revision {quote(revision)}" if revision else ""
    following = f'Next: {command()} run {quote(name)}{option} "Once upon a time"'
    return f"{name}\n{facts(rows)}\n\n{following}"
