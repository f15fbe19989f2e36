"""`ingot cache`: where compiled models lie, how large that is, and making it smaller."""

from __future__ import annotations

import argparse

from ingot.cli.arguments import Argument, Arguments
from ingot.cli.numbers import format_bytes
from ingot.cli.output import facts, print_json
from ingot.errors import UsageError


def _size(text: str) -> int:
    from ingot.settings import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no size. {error}") from None


ARGUMENTS: Arguments = (
    Argument("--limit SIZE", "remove the longest unused artifacts beyond SIZE, as in 20GB", _size),
    Argument("--clean", "remove all artifacts, built kernels, and leftovers of compiles"),
)


def main(args: argparse.Namespace) -> int:
    """Shows where compiled models are kept, and how much room they take. Removes some if asked;
    never one that is open. INGOT_CACHE_LIMIT sets a limit that holds after every compile."""
    from ingot.cache.artifacts import Artifacts
    from ingot.cache.builds import Builds
    from ingot.settings import settings

    if args.clean and args.limit is not None:
        raise UsageError("--limit and --clean are both given", hint="Give one of them.")
    cache, always = Artifacts(settings().cache_dir), settings().cache_limit
    limit = 0 if args.clean else args.limit
    removed = [] if limit is None else cache.shrink(limit)
    if args.clean:
        Builds(settings().kernels_dir).clear()
    left = cache.entries()
    nbytes = sum(entry.nbytes for entry in left)
    if args.json:
        result = {"path": cache.folder, "artifacts": len(left), "nbytes": nbytes, "limit": always}
        print_json(result | {"removed": removed})
        return 0
    rows = [
        ("artifacts", f"{len(left)}, {format_bytes(nbytes)}"),
        ("limit", "none" if always is None else format_bytes(always)),
    ]
    if limit is not None:
        rows.append(("removed", f"{len(removed)}, {format_bytes(sum(e.nbytes for e in removed))}"))
    print(f"{cache.folder}\n{facts(rows)}")
    return 0
