"""`ingot serve`: models behind the API of OpenAI."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ingot.cli.arguments import REVISION, Argument, Arguments, Group
from ingot.cli.numbers import human_int
from ingot.errors import UsageError

NAME = "serve"
SUMMARY = "serve models to clients of OpenAI's API"
PREFIX = "INGOT_SERVE_"
ARGUMENTS: Arguments = (
    Argument(
        "models [NAME=]MODEL",
        "an artifact, a model directory, a GGUF file or a model on the hub; clients know it by "
        "NAME (default: the name of its folder)",
        nargs="+",
    ),
    REVISION,
    Argument(
        "--served-model-name NAME",
        "what clients call the model, where there is one; repeated, more names of it",
        action="append",
    ),
    Group(
        "engine",
        "How each model is opened.",
        (
            Argument(
                "--max-model-len N",
                "longest sequence to make room for (default: the artifact's limit)",
                human_int,
            ),
            Argument(
                "--threads N", "(default: one per processor that this process may use)", human_int
            ),
            Argument("--in-process", "run the models in this process, not in one of their own"),
        ),
    ),
    Group(
        "listening",
        "",
        (
            Argument("--host ADDRESS", "(default: 127.0.0.1)"),
            Argument("--port N", "0 takes a free one (default: 8000)", int),
            Argument("--uds PATH", "listen on a Unix socket in place of a port", Path),
        ),
    ),
    Group(
        "configuration",
        f"An option --some-name is also set by {PREFIX}SOME_NAME, or by some-name in a file. The "
        "command line beats the environment, and the environment the file.",
        (
            Argument("--config FILE", "read options from a TOML file", Path),
            Argument("--print-config", "print every option with its origin, and end"),
        ),
    ),
)


def main(args: argparse.Namespace) -> int:
    """Serves models over HTTP, with the API of OpenAI at /v1 and a page for people at /. Listens
    on this machine alone unless told otherwise. SIGTERM and Ctrl-C end it in order."""
    from ingot.cli.origins import fill
    from ingot.settings import environment

    origins = fill(args, ARGUMENTS, environment(), PREFIX, args.config)
    if args.print_config:
        return _print(origins, args.json)
    names = named_models(args.models, args.served_model_name or [])
    raise UsageError(f"{names}")


def named_models(models: list[str], served: list[str]) -> dict[str, tuple[str, list[str]]]:
    """(path, aliases) of each model by the name that clients know it by. Raises UsageError."""
    if served and len(models) > 1:
        raise UsageError(
            "--served-model-name names one model, and there are several",
            hint="Write NAME=MODEL for each.",
        )
    named: dict[str, tuple[str, list[str]]] = {}
    for model in models:
        name, path = _split(model)
        name, *aliases = served or [name]
        if name in named:
            raise UsageError(
                f"two models are called {name!r}", hint="Write NAME=MODEL for one of them."
            )
        named[name] = path, aliases
    return named


def _split(model: str) -> tuple[str, str]:
    name, equals, path = model.partition("=")
    # A path may have an equals sign as well; a name has no slash before it.
    if equals and "/" not in name and name:
        return name, path
    return Path(model).resolve().name.removesuffix(".ingot").removesuffix(".gguf"), model


def _print(origins: Any, as_json: bool) -> int:
    from ingot.cli.output import print_json, show, table

    if as_json:
        print_json({each.name: {"value": each.value, "origin": each.origin} for each in origins})
    else:
        show(table(origins, ("option", "value", "origin"), indent=""))
    return 0
