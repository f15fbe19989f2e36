"""The arguments of the `ingot` command: the list of verbs, and the parser of the command line."""

from __future__ import annotations

import argparse
from functools import partial
from inspect import cleandoc
from typing import Any, NoReturn, Protocol

from ingot.cli import bench, explain, inspect, run, verify
from ingot.cli import compile as compile_verb
from ingot.cli.arguments import COMMON, Arguments, add_arguments
from ingot.errors import UsageError

EXIT_CODES = """\
exit codes: 0 ok, 1 internal error, 2 usage or unsupported model, 3 incompatible host or
artifact, 4 verification failed, 5 out of memory or disk, 130 interrupted, 143 terminated
Results go to stdout, progress and messages to stderr."""


class Verb(Protocol):
    """A module of this package that is a verb."""

    NAME: str
    SUMMARY: str
    ARGUMENTS: Arguments

    def main(self, args: argparse.Namespace) -> int: ...


VERBS: tuple[Verb, ...] = (compile_verb, run, bench, inspect, verify, explain)


# Keeps the line breaks of descriptions, and gives the column of options more room.
FORMATTER = partial(argparse.RawDescriptionHelpFormatter, max_help_position=32)


class Parser(argparse.ArgumentParser):
    """Raises UsageError for arguments that it cannot parse; options can come in any place."""

    _intermixed = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # argparse gives up on an optional positional after an option, unless it is asked to mix
        # them. Mixing calls this method again.
        if self._subparsers is not None or self._intermixed:
            return super().parse_known_args(args, namespace)
        self._intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixed = False

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"See: {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = Parser(
        prog="ingot",
        description="Compiles language models ahead of time, and runs them without PyTorch.",
        epilog=EXIT_CODES,
        formatter_class=FORMATTER,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=Parser)
    for verb in VERBS:
        sub = verbs.add_parser(
            verb.NAME,
            help=verb.SUMMARY,
            description=cleandoc(verb.main.__doc__ or ""),
            formatter_class=FORMATTER,
            allow_abbrev=False,
        )
        add_arguments(sub, (*verb.ARGUMENTS, *COMMON))
        sub.set_defaults(verb=verb)
    return parser
