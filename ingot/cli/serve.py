"""`ingot serve`: models behind the API of OpenAI."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingot.cli.arguments import Argument, ArgumentGroup, Arguments
from ingot.cli.model_options import (
    CHAT_OPTIONS,
    MODEL_OPTIONS,
    PIN,
    given_chats,
    given_options,
    given_settings,
    own_options,
)
from ingot.cli.numbers import human_bytes, human_int
from ingot.cli.serve_options import EDGE_OPTIONS, edge_settings, port_number
from ingot.errors import UsageError
from ingot.settings import SERVE_PREFIX, serve_variables

if TYPE_CHECKING:
    from ingot.cli.origins import Origin
    from ingot.serve.serving import Named, Serving

MOST_EARLY = 8  # engine processes that are begun before the server is there
MODELS = ArgumentGroup(
    "models",
    "How each model is opened, and how long it stays.",
    (
        Argument(
            "--served-model-name NAME",
            "what clients call the model, where there is one; repeated, further names of it",
            action="append",
        ),
        *MODEL_OPTIONS,
        Argument(
            "--set NAME.OPTION=VALUE",
            "one of these options for one model, such as bard.threads=2; repeated",
            action="append",
        ),
        Argument("--memory SIZE", "of all models together; idle ones make room", human_bytes),
        Argument("--lazy", "load each model at its first request, and not at the start"),
        Argument("--in-process", "run models in this process, and not each in one of its own"),
    ),
)
REQUESTS = ArgumentGroup(
    "requests",
    "",
    (
        Argument("--max-n N", "completions of a prompt (default: 16)", human_int),
        Argument("--max-logprobs N", "likeliest tokens of a place (default: 20)", human_int),
        Argument(
            "--tool-call-parser NAME",
            "format of calls: auto, none, or one that docs/tool_formats.md names (default: auto)",
        ),
        Argument("--trust-request-chat-template", "let requests bring a chat template"),
    ),
)
CHATS = ArgumentGroup(
    "chats", "What conversations get whose requests say nothing else.", CHAT_OPTIONS
)
GRPC = ArgumentGroup(
    "gRPC",
    "The open inference protocol, and services of our own; needs the extra `grpc`.",
    (
        Argument(
            "--grpc-port N",
            "serve gRPC, too, at the same address with the same keys; 0: any free port, which is "
            "logged (default: none)",
            port_number,
        ),
    ),
)
CONFIGURATION = ArgumentGroup(
    "configuration",
    f"An option --some-name is also set by {SERVE_PREFIX}SOME_NAME, or by some-name in a file. The "
    "command line beats the environment, and the environment the file.",
    (
        Argument("--config FILE", "read options from a TOML file", Path),
        Argument("--print-config", "print every option with its origin, and end"),
    ),
)
ARGUMENTS: Arguments = (
    Argument(
        "models [NAME=]MODEL",
        "an artifact, a model directory, a GGUF file or a model on the hub; clients call it NAME "
        "(default: the name of its folder)",
        nargs="*",
    ),
    MODELS,
    REQUESTS,
    CHATS,
    *EDGE_OPTIONS,
    GRPC,
    CONFIGURATION,
)


def main(args: argparse.Namespace) -> int:
    """Serves models over HTTP, with the API of OpenAI at /v1 and a page for people at /. Listens
    on this machine alone unless told otherwise. SIGTERM and Ctrl-C end it in order."""
    from ingot.cli.origins import fill

    origins = fill(args, ARGUMENTS, serve_variables(), SERVE_PREFIX, args.config)
    if args.print_config:
        _print(origins, as_json=args.json)
        return 0
    from ingot.serve.isolated.spawn import Spares

    # Engines import what they need while the server does.
    early = 0 if args.lazy or args.in_process else min(len(args.models), MOST_EARLY)
    with Spares(early) as spares:
        models = named_models(args.models, args.served_model_name or [])
        from ingot.serve.serving import run

        return run(models, serving(args), edge_settings(args), spares)


def serving(args: argparse.Namespace) -> Serving:
    """Settings of models and requests from the options."""
    from ingot.serve.openai.params import Terms
    from ingot.serve.serving import Kept, Serving
    from ingot.serve.settings import ModelSettings

    every = given_options(args)
    own = own_options(args.set or [])
    if args.in_process and any("watchdog" in given for given in (every, *own.values())):
        raise UsageError(
            "--watchdog is given with --in-process", hint="It watches engine processes alone."
        )

    def kept(given: dict[str, Any]) -> Kept:
        settings = ModelSettings(**given_settings(given))
        return Kept(settings, bool(given.get(PIN)), given_chats(given))

    terms = ("max_n", "max_logprobs", "tool_call_parser")
    return Serving(
        model=kept(every),
        own={name: kept(every | given) for name, given in own.items()},
        terms=Terms(
            **_given(args, {name: name for name in terms}),
            trusts_request_template=bool(args.trust_request_chat_template),
        ),
        memory_bytes=args.memory,
        lazy=bool(args.lazy),
        in_process=bool(args.in_process),
        grpc_port=args.grpc_port,
    )


def named_models(models: Sequence[str], served: Sequence[str]) -> list[Named]:
    """The models with the names by which clients know them. Raises UsageError."""
    from ingot.serve.serving import Named

    if not models:
        raise UsageError("no model is named", hint="Give an artifact: ingot serve MODEL.ingot")
    if served and len(models) > 1:
        raise UsageError(
            "--served-model-name names one model, and there are several",
            hint="Write NAME=MODEL for each.",
        )
    found: dict[str, Named] = {}
    for model in models:
        name, source = _split(model)
        name, *aliases = served or [name]
        if name in found:
            raise UsageError(
                f"two models are called {name!r}", hint="Write NAME=MODEL for one of them."
            )
        found[name] = Named(name, source, tuple(aliases))
    return list(found.values())


def _split(model: str) -> tuple[str, str]:
    """The name and the source of a model; a path may have an equals sign, too."""
    name, equals, source = model.partition("=")
    if equals and name and not Path(model).exists():
        return name, source
    if not Path(model).exists():  # on the hub: clients know it by the same name
        return model.partition(":")[0], model
    return Path(model).resolve().name.removesuffix(".ingot").removesuffix(".gguf"), model


def _given(args: argparse.Namespace, names: dict[str, str]) -> dict[str, Any]:
    return {new: v for old, new in names.items() if (v := getattr(args, old)) is not None}


def _print(origins: Sequence[Origin], *, as_json: bool) -> None:
    from ingot.cli.output import print_json, table

    if as_json:
        print_json({each.name: {"value": each.value, "origin": each.origin} for each in origins})
    else:
        print(table(origins, ("option", "value", "origin"), indent=""))
