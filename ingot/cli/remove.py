"""`ingot rm`: remove a model, or artifacts from the cache."""

from __future__ import annotations

import argparse
import sys

from ingot.cli.arguments import Argument, Arguments
from ingot.cli.numbers import format_bytes
from ingot.cli.output import print_json
from ingot.errors import UsageError

ARGUMENTS: Arguments = (
    Argument("name NAME|ID", "a model, or the id of an artifact, as `ingot list` shows them"),
)


def main(args: argparse.Namespace) -> int:
    """Removes a model from the hub's cache, which other programs share, and every artifact in
    ingot's cache that was compiled from it; or, given an id, that artifact. What is open stays."""
    from ingot.cache.artifacts import Artifacts
    from ingot.hub.snapshots import models, remove_model
    from ingot.settings import settings

    cache = Artifacts(settings().cache_dir)
    artifacts = [entry for entry in cache.entries() if args.name in (entry.model, entry.id)]
    found = [model for model in models() if model.name == args.name]
    if not artifacts and not found:
        raise UsageError(f"no model and no artifact is called {args.name}", hint="See: ingot list")
    left = [entry for entry in artifacts if not cache.remove(entry)]
    for model in found:
        remove_model(model)
    removed = [
        *(("model", model.name, model.nbytes) for model in found),
        *(("artifact", entry.id, entry.nbytes) for entry in artifacts if entry not in left),
    ]
    if args.json:
        objects = [{"kind": kind, "name": name, "nbytes": n} for kind, name, n in removed]
        print_json({"removed": objects, "left": [entry.id for entry in left]})
    else:
        for kind, name, nbytes in removed:
            print(f"removed the {kind} {name}, {format_bytes(nbytes)}")
    for entry in left:  # not raised: with --json, stdout has its one object
        what = f"the artifact {entry.id} of {entry.model} is open, or another user's"
        print(f"error: {what}\n  End the programs that run it, and try again.", file=sys.stderr)
    return UsageError.exit_code if left else 0
