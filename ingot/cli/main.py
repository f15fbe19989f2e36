"""The `ingot` command: from arguments to an exit code.

This module imports little: Ctrl-C can come while the rest loads, and `main` must run to catch it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ingot.cli.streams import open_streams, settle_stdout

if TYPE_CHECKING:
    from argparse import Namespace

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line; returns its exit code and raises nothing."""
    open_streams()
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        code = INTERRUPTED
    settle_stdout()
    return code


def _run(argv: Sequence[str]) -> int:
    """Runs one command line and reports its errors; raises nothing but KeyboardInterrupt."""
    from argparse import Namespace

    from ingot.cli import failure

    # The report of an error needs these two, even if the arguments cannot be parsed.
    args = Namespace(json="--json" in argv, debug="--debug" in argv)
    code = 0
    try:
        code = _act(argv, args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of stdout has gone, as in `| head`
        pass
    except Exception as error:
        code = failure.report(error, args)
    return code


def _act(argv: Sequence[str], args: Namespace) -> int:
    """Parses into `args` and does what they say; returns the exit code."""
    from ingot.cli.parser import build_parser
    from ingot.version import __version__

    parser = build_parser()
    try:
        parser.parse_args(argv, args)
    except SystemExit as stop:  # argparse has printed the help
        return int(stop.code or 0)
    if args.version:
        print(f"ingot {__version__}")
        return 0
    if not hasattr(args, "verb"):
        parser.print_help(sys.stderr)
        return 2
    return int(args.verb.main(args))


if __name__ == "__main__":
    sys.exit(main())
