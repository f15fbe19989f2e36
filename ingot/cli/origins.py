"""Finds the origin of each option's value: command line, environment, a file, or the default."""

from __future__ import annotations

import argparse
import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ingot.cli.arguments import Argument, ArgumentGroup, Arguments
from ingot.errors import UsageError

_DEFAULT = re.compile(r"\bdefault: ([^,;)]*)")
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
# What Kubernetes sets beside a service whose name is our prefix.
_SERVICE = "tcp://"


class Origin(NamedTuple):
    """An option, its value as people read it, and where that comes from."""

    name: str
    value: str
    origin: str


def options_of(arguments: Arguments) -> Iterator[Argument]:
    """The options of a verb, those of its groups as well; no positional arguments."""
    for each in arguments:
        if isinstance(each, ArgumentGroup):
            yield from options_of(each.arguments)
        elif each.names[0].startswith("-"):
            yield each


def fill(
    args: argparse.Namespace,
    arguments: Arguments,
    environ: Mapping[str, str],
    prefix: str,
    file: Path | None,
) -> list[Origin]:
    """Gives options that the command line leaves out the values of the environment or a file.

    A variable is called as its option, after the prefix: `INGOT_SERVE_PORT` for `--port`. In the
    file an option is a key of TOML. What nobody says stays None, which is the default. Raises
    UsageError for a value that is wrong, and for a key or a variable that no option has.
    """
    options = {field_of(each): each for each in options_of(arguments)}
    given = {
        name.removeprefix(prefix).lower(): text
        for name, text in environ.items()
        if name.startswith(prefix) and not text.startswith(_SERVICE)
    }
    in_file = _read(file) if file is not None else {}
    _refuse_unknown(in_file, options, f"{file}: there is no option")
    return [_filled(args, name, option, given, in_file, prefix) for name, option in options.items()]


def unknown_variables(arguments: Arguments, environ: Mapping[str, str], prefix: str) -> list[str]:
    """Variables with the prefix that are called like no option."""
    known = {f"{prefix}{field_of(each)}".upper() for each in options_of(arguments)}
    return sorted(name for name in environ if name.startswith(prefix) and name not in known)


def _filled(
    args: argparse.Namespace,
    name: str,
    option: Argument,
    given: Mapping[str, str],
    in_file: Mapping[str, Any],
    prefix: str,
) -> Origin:
    shown = option.names[0]
    if (value := getattr(args, name)) is not None and value is not False:
        return Origin(shown, _text(getattr(args, name)), "command line")
    if name in given:
        variable = f"{prefix}{name}".upper()
        setattr(args, name, parsed(option, given[name], variable))
        return Origin(shown, _text(getattr(args, name)), variable)
    if name in in_file:
        value = in_file[name]
        parts = value if isinstance(value, list) else [value]
        texts = [str(part).lower() if isinstance(part, bool) else str(part) for part in parts]
        setattr(args, name, parsed(option, ",".join(texts), f"{shown} in the file"))
        return Origin(shown, _text(getattr(args, name)), "--config")
    found = _DEFAULT.search(option.options["help"])
    return Origin(shown, found[1] if found else "not set", "default")


def parsed(option: Argument, text: str, where: str) -> Any:
    """The value that the command line would make of a text; of one that may be repeated, a list.

    Raises UsageError, with where the text stands.
    """
    kind, action = option.options.get("type", str), option.options.get("action")
    if action == "store_true":
        if text.lower() not in (*_YES, *_NO):
            raise UsageError(f"{where} is {text!r}", hint="Supported: true and false.")
        return text.lower() in _YES
    try:
        value = [kind(part) for part in text.split(",")] if action == "append" else kind(text)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise UsageError(f"{where} is {text!r}", hint=str(error)) from None
    choices = option.options.get("choices")
    if choices and value not in choices:
        raise UsageError(f"{where} is {text!r}", hint=f"Supported: {', '.join(choices)}.")
    return value


def _read(file: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is no TOML: {error}") from None
    return {name.replace("-", "_"): value for name, value in found.items()}


def _refuse_unknown(names: Iterable[str], known: Iterable[str], found: str) -> None:
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, list(known), 1)
            raise UsageError(f"{found} {name!r}", hint=f"Did you mean {near[0]!r}?" if near else "")


def field_of(option: Argument) -> str:
    """Its name among parsed arguments."""
    return option.names[-1].lstrip("-").replace("-", "_")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
