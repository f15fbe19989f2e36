"""The arguments of the `ingot` command: the list of verbs, and the parser of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple, NoReturn, Protocol

from ingot.cli.arguments import COMMON, Arguments, add_arguments, verb_joined
from ingot.errors import UsageError
from ingot.imports import imported

EXIT_CODES = """\
exit codes: 0 ok, 1 internal error, 2 usage or unsupported model, 3 incompatible host or
artifact, 4 verification failed, 5 out of memory or disk, 130 interrupted, 143 terminated
Results go to stdout, progress and messages to stderr."""


class VerbModule(Protocol):
    """A module of this package that carries out a verb."""

    ARGUMENTS: Arguments

    def main(self, args: argparse.Namespace) -> int: ...


class Verb(NamedTuple):
    """A verb in `ingot --help`. Its module is imported when the verb is asked for."""

    name: str
    summary: str
    module_name: str = ""

    @property
    def module(self) -> VerbModule:
        return imported(f"ingot.cli.{self.module_name or self.name}")

    @property
    def description(self) -> str:
        from inspect import cleandoc

        return cleandoc(self.module.main.__doc__ or "")

    def main(self, args: argparse.Namespace) -> int:
        return self.module.main(args)


VERBS = (
    Verb("compile", "compile a model directory into an artifact"),
    Verb("run", "generate text from a prompt, or hold a conversation"),
    Verb("chat", "hold a conversation with a model on a server", "chat.url"),
    Verb("embed", "write the vectors of texts in files, by a model made for it"),
    Verb("serve", "serve models to clients of OpenAI's API"),
    Verb("models", "show, load, unload and reload the models of a running server"),
    Verb("bench", "measure prefill and decode beside the limits of this machine", "bench.bench"),
    Verb(
        "bench serve",
        "measure a server under load, with the options and results of vLLM's benchmark",
        "bench.serve",
    ),
    Verb(
        "bench embed",
        "measure how many texts a second become vectors, beside the limits of this machine",
        "bench.embed",
    ),
    Verb(
        "inspect",
        "show targets, sizes, ledger, plan and memory of an artifact",
        "inspect.inspect",
    ),
    Verb("verify", "check every hash, then replay the golden outputs on this host"),
    Verb("golden record", "record goldens of a model, to verify artifacts against", "golden"),
    Verb(
        "compare",
        "tell how far two forms of a model are apart: artifact, directory, transformers, ONNX",
    ),
    Verb("explain", "tell whether a model is supported, every reason why not, and what it needs"),
    Verb(
        "export-onnx", "write a model as ONNX, for onnxruntime and onnxruntime-genai", "export_onnx"
    ),
    Verb("pull", "download a model from the hub, or what is new of it"),
    Verb("list", "show the downloaded models and the artifacts in the cache", "listing"),
    Verb("rm", "remove a downloaded model, or artifacts from the cache", "remove"),
    Verb("cache", "show the cache of compiled models, or make it smaller"),
    Verb("key", "make an API key for `ingot serve`"),
    Verb("doctor", "show what this host can build and run, for bug reports"),
    Verb("completion", "print a script that completes ingot's command line in bash, zsh or fish"),
)


NAMES = [verb.name for verb in VERBS]

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
            args = verb_joined(args, NAMES)
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
                hint = f"{_question(_nearest(name, known))}See: {self.prog} --help"
                raise UsageError(f"{self.prog} has no option {name}", hint=hint)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = [str(choice) for choice in action.choices or ()]
        if not choices or value in choices:
            return
        near = _nearest(str(value), choices)
        supported = _question(near) or f"Supported: {', '.join(choices)}. "
        if not isinstance(action, argparse._SubParsersAction):
            found = f"{'/'.join(action.option_strings) or action.metavar} is {value!r}"
            raise UsageError(found, hint=f"{supported}See: {self.prog} --help")
        verb = near and f" {near}"
        raise UsageError(
            f"{self.prog} has no verb {value!r}", hint=f"{supported}See: {self.prog}{verb} --help"
        )


def _nearest(name: str, known: Iterable[str]) -> str:
    """The one that was probably meant; empty if none is near."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, known, 1)), "")


def _question(near: str) -> str:
    return f"Did you mean {near}? " if near else ""


def build_parser(words: Sequence[str] | None = None) -> Parser:
    """The parser of the command line: of all of it, or as much as `words` need, where they are
    given. Of other verbs it then knows name and summary."""
    parser = Parser(
        prog="ingot",
        description="Compiles language models ahead of time, and runs them without PyTorch.",
        epilog=EXIT_CODES,
        formatter_class=FORMATTER,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=Parser)
    needed = NAMES if words is None else verb_joined(words, NAMES)
    for verb in VERBS:
        sub = verbs.add_parser(
            verb.name, help=verb.summary, formatter_class=FORMATTER, allow_abbrev=False
        )
        sub.set_defaults(verb=verb)
        if verb.name in needed:
            sub.description = verb.description
            add_arguments(sub, (*verb.module.ARGUMENTS, *COMMON))
    return parser
