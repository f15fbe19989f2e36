"""`ingot list`: the models and artifacts that lie in caches."""

from __future__ import annotations

import argparse
import time

from ingot.cli.arguments import Arguments
from ingot.cli.numbers import format_age, format_bytes
from ingot.cli.output import print_json, table

ARGUMENTS: Arguments = ()


def main(args: argparse.Namespace) -> int:
    """Shows the models in the hub's cache that have all that ingot needs, or that `ingot pull` has
    begun with; and the artifacts that were compiled into ingot's own cache. The last used come
    first."""
    from ingot.cache.artifacts import Artifacts
    from ingot.hub.snapshots import cache_dir, models
    from ingot.settings import settings

    folder, hub = settings().cache_dir, cache_dir()
    found, artifacts = models(), Artifacts(folder).entries()
    if args.json:
        print_json({"models": found, "artifacts": artifacts})
        return 0
    now = time.time()
    rows = [
        (
            m.name if m.whole else f"{m.name} (in part)",
            format_bytes(m.nbytes),
            format_age(now - m.last_used),
        )
        for m in found
    ]
    header = ("model", "size", "used")
    print(f"models in {hub}\n{table(rows, header) if rows else '  none'}\n")
    kept = [
        (e.model, e.id, format_bytes(e.nbytes), format_age(now - e.last_used)) for e in artifacts
    ]
    titles = ("compiled from", "id", "size", "used")
    print(f"artifacts in {folder}\n{table(kept, titles) if kept else '  none'}")
    return 0
