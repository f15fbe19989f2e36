"""`ingot serve`: models behind the API of OpenAI."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ingot.cli.arguments import REVISION, Argument, Arguments, Group
from ingot.cli.numbers import human_int
from ingot.cli.serve_options import EDGE_OPTIONS, edge_settings
from ingot.errors import UnknownModelError, UsageError
from ingot.settings import SERVE_PREFIX, serve_variables

if TYPE_CHECKING:
    from ingot.cli.origins import Origin
    from ingot.serve.edge import EdgeSettings

NAME = "serve"
SUMMARY = "serve models to clients of OpenAI's API"
ARGUMENTS: Arguments = (
    Argument(
        "models [NAME=]MODEL",
        "an artifact, a model directory, a GGUF file or a model on the hub; clients call it NAME "
        "(default: the name of its folder)",
        nargs="*",
    ),
    REVISION,
    Argument(
        "--served-model-name NAME",
        "what clients call the model, where there is one; repeated, further names of it",
        action="append",
    ),
    Group(
        "models",
        "How each model is opened.",
        (
            Argument(
                "--max-model-len N",
                "longest sequence to make room for (default: the artifact's limit)",
                human_int,
            ),
            Argument(
                "--threads N", "of a model (default: one per processor that may be used)", human_int
            ),
            Argument("--in-process", "run models in this process, and not each in one of its own"),
            Argument("--trust-request-chat-template", "let requests bring a chat template"),
        ),
    ),
    *EDGE_OPTIONS,
    Group(
        "configuration",
        f"An option --some-name is also set by {SERVE_PREFIX}SOME_NAME, or by some-name in a file. "
        "The command line beats the environment, and the environment the file.",
        (
            Argument("--config FILE", "read options from a TOML file", Path),
            Argument("--print-config", "print every option with its origin, and end"),
        ),
    ),
)


class Named(NamedTuple):
    """A model as the command line names it."""

    name: str
    path: str
    aliases: Sequence[str] = ()


def main(args: argparse.Namespace) -> int:
    """Serves models over HTTP, with the API of OpenAI at /v1 and a page for people at /. Listens
    on this machine alone unless told otherwise. SIGTERM and Ctrl-C end it in order."""
    from ingot.cli.origins import fill

    origins = fill(args, ARGUMENTS, serve_variables(), SERVE_PREFIX, args.config)
    if args.print_config:
        _print(origins, as_json=args.json)
        return 0
    models = named_models(args.models, args.served_model_name or [])
    import uvloop

    return uvloop.run(_serve(models, args, edge_settings(args)))


async def _serve(models: Sequence[Named], args: argparse.Namespace, settings: EdgeSettings) -> int:
    from ingot.serve.edge import Edge
    from ingot.serve.http.app import build_app
    from ingot.serve.http.site import HttpSettings
    from ingot.serve.openai.params import Terms

    edge = Edge(settings)
    async with AsyncExitStack() as stack:
        opened = _Opened()
        for model in models:
            engine = await asyncio.to_thread(_open, model.path, args)
            stack.push_async_callback(engine.close)
            opened.add(model, engine)
        trusts = bool(args.trust_request_chat_template)
        http = HttpSettings(terms=Terms(trusts_request_template=trusts))
        code: int = await edge.serve(edge.wrap(build_app(opened, http, edge)))
        return code


def _open(path: str, args: argparse.Namespace) -> Any:
    from ingot.runtime.llm import LLM
    from ingot.serve.local import LocalEngine

    return LocalEngine(LLM(path, max_model_len=args.max_model_len, num_threads=args.threads))


class _Status(NamedTuple):
    name: str
    state: str
    aliases: Sequence[str]
    facts: Any


class _Opened:
    def __init__(self) -> None:
        self._engines: dict[str, Any] = {}
        self._models: list[Named] = []

    def add(self, model: Named, engine: Any) -> None:
        self._models.append(model)
        for name in (model.name, *model.aliases):
            self._engines[name] = engine

    @asynccontextmanager
    async def lease(self, name: str) -> Any:
        if name not in self._engines:
            raise UnknownModelError(
                f"the model {name!r:.80} does not exist",
                hint=f"Served here: {', '.join(self._engines)}.",
            )
        yield self._engines[name]

    def status(self) -> list[_Status]:
        return [
            _Status(m.name, "loaded", m.aliases, self._engines[m.name].facts) for m in self._models
        ]


def named_models(models: Sequence[str], served: Sequence[str]) -> list[Named]:
    """The models with the names by which clients know them. Raises UsageError."""
    if not models:
        raise UsageError("no model is named", hint="Give an artifact: ingot serve MODEL.ingot")
    if served and len(models) > 1:
        raise UsageError(
            "--served-model-name names one model, and there are several",
            hint="Write NAME=MODEL for each.",
        )
    found: dict[str, Named] = {}
    for model in models:
        name, path = _split(model)
        name, *aliases = served or [name]
        if name in found:
            raise UsageError(
                f"two models are called {name!r}", hint="Write NAME=MODEL for one of them."
            )
        found[name] = Named(name, path, aliases)
    return list(found.values())


def _split(model: str) -> tuple[str, str]:
    name, equals, path = model.partition("=")
    if equals and name and not Path(model).exists():  # which may have an equals sign, too
        return name, path
    place = Path(model)
    folder = place.resolve().name if place.exists() else model.partition(":")[0]
    return folder.removesuffix(".ingot").removesuffix(".gguf"), model


def _print(origins: Sequence[Origin], *, as_json: bool) -> None:
    from ingot.cli.output import print_json, table

    if as_json:
        print_json({each.name: {"value": each.value, "origin": each.origin} for each in origins})
    else:
        print(table(origins, ("option", "value", "origin"), indent=""), file=sys.stdout)
