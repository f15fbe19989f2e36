"""The arguments of the `ingot` command: the list of verbs, and the parser of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from inspect import cleandoc
from itertools import takewhile
from typing import Any, NoReturn, Protocol

from ingot.cli import (
    bench,
    bench_serve,
    cache,
    chat_url,
    compare,
    completion,
    doctor,
    explain,
    export_onnx,
    golden,
    inspect,
    key,
    listing,
    models,
    pull,
    remove,
    run,
    serve,
    verify,
)
from ingot.cli import compile as compile_verb
from ingot.cli.arguments import COMMON, Arguments, add_arguments, verb_joined
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


VERBS: tuple[Verb, ...] = (
    compile_verb,
    run,
    chat_url,
    serve,
    models,
    bench,
    bench_serve,
    inspect,
    verify,
    golden,
    compare,
    explain,
    export_onnx,
    pull,
    listing,
    remove,
    cache,
    key,
    doctor,
    completion,
)


# Keeps the line breaks of descriptions, and gives the column of options more room.
FORMATTER = partial(argparse.RawDescriptionHelpFormatter, max_help_position=32)


class Parser(argparse.ArgumentParser):
    """Raises UsageError for arguments that it cannot parse; options can come in any place."""

    _intermixed = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # argparse gives up on an optional positional after an option, unless it is asked to mix
        # them. Mixing calls this method again.
        if self._intermixed:
            return super().parse_known_args(args, namespace)
        self._refuse_unknown_options(args)
        if self._subparsers is not None:
            args = verb_joined(args, [verb.NAME for verb in VERBS])
            return super().parse_known_args(args, namespace)
        self._intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixed = False

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"See: {self.prog} --help")

    def _refuse_unknown_options(self, words: Sequence[str]) -> None:
        """Names a mistyped option before argparse misses an argument or takes its value for one."""
        until_verb = takewhile(lambda word: word.startswith("-"), words)
        for word in words if self._subparsers is None else until_verb:
            name = word.partition("=")[0]
            if word == "--":
                return
            # Like argparse, takes a text with a space for an argument.
            if (
                name.startswith("--")
                and " " not in word
                and name not in self._option_string_actions
            ):
                known = [option for option in self._option_string_actions if option[:2] == "--"]
                hint = f"{_nearest(name, known)}See: {self.prog} --help"
                raise UsageError(f"{self.prog} has no option {name}", hint=hint)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = [str(choice) for choice in action.choices or ()]
        if not choices or value in choices:
            return
        near = _nearest(str(value), choices)
        supported = near or f"Supported: {', '.join(choices)}. "
        if not isinstance(action, argparse._SubParsersAction):
            found = f"{'/'.join(action.option_strings) or action.metavar} is {value!r}"
            raise UsageError(found, hint=f"{supported}See: {self.prog} --help")
        verb = near and f" {get_close_matches(str(value), choices, 1)[0]}"
        raise UsageError(
            f"{self.prog} has no verb {value!r}", hint=f"{supported}See: {self.prog}{verb} --help"
        )


def _nearest(name: str, known: Iterable[str]) -> str:
    """Asks for the one that was probably meant; empty if none is near."""
    near = get_close_matches(name, known, 1)
    return f"Did you mean {near[0]}? " if near else ""


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
        sub.set_defaults(verb=verb, parser=parser)
    return parser
