"""`ingot models`: the models of a running server, and loading and unloading them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ingot.cli.arguments import Argument, ArgumentGroup, Arguments
from ingot.cli.chat.url import KEY_FILE, URL, server_of
from ingot.cli.model_options import MODEL_OPTIONS, PIN, given_options, given_settings
from ingot.cli.numbers import format_age, format_bytes
from ingot.cli.output import print_json, table
from ingot.errors import UsageError

ACTIONS = ("list", "ps", "load", "unload", "reload")
ARGUMENTS: Arguments = (
    Argument(
        "action ACTION",
        "list: all models; ps: those in use; load, unload, reload: one of them (default: list)",
        choices=ACTIONS,
        nargs="?",
        default="list",
    ),
    Argument("name NAME", "which model to load, unload or reload", nargs="?"),
    Argument(
        "--source MODEL",
        "with load, a model that the server does not know yet, to be called NAME; with reload, "
        "what NAME is from now on. A path is one on the server's machine",
    ),
    ArgumentGroup(
        "settings",
        "With load, those of a model that the server does not know yet; --pin and --unpin also of "
        "others. With reload, all settings anew.",
        (*MODEL_OPTIONS, Argument("--unpin", "let it go when it is idle or memory is short")),
    ),
    Argument("--force", "with unload, end its requests with an error instead of waiting for them"),
    URL,
    KEY_FILE,
)
_IDLE = ("unloaded", "failed")


def main(args: argparse.Namespace) -> int:
    """Asks a server that `ingot serve` started. `list` shows its models with their states, and
    `ps` those that take memory now. `load` returns when the model can be used, `unload` when its
    memory is free, and `reload` when the new engine has taken over: no request is lost by it."""
    _check(args)
    server = server_of(args)
    if args.action in ("list", "ps"):
        models = _models(server.call("GET", "/models"))
        if args.action == "ps":
            models = [each for each in models if each.get("state") not in _IDLE]
        if args.json:
            print_json(models)
        else:
            print((_running if args.action == "ps" else _all)(models) or "  none")
        return 0
    given = given_options(args)
    fields = {
        "model": args.name,
        "source": args.source,
        "force": args.force or None,
        "settings": given_settings(given) or None,
        "pinned": True if PIN in given else False if args.unpin else None,
    }
    body = {name: value for name, value in fields.items() if value is not None}
    model = server.call("POST", f"/models/{args.action}", body).get("model") or {}
    if args.json:
        print_json(model)
    else:
        print(f"{model.get('name')}: {model.get('state')}")
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raises UsageError for arguments that the action does not take, or lacks."""
    lists = args.action in ("list", "ps")
    if lists != (args.name is None):
        raise UsageError(
            f"`ingot models {args.action}` {'takes no name' if lists else 'needs a name'}",
            hint="See: ingot models --help",
        )
    settings = given_settings(given_options(args))
    for option, given, actions in (
        *((f"a setting ({name})", True, ("load", "reload")) for name in settings),
        ("--pin", args.pin, ("load",)),
        ("--unpin", args.unpin, ("load",)),
        ("--source", args.source, ("load", "reload")),
        ("--force", args.force, ("unload",)),
    ):
        if given and args.action not in actions:
            raise UsageError(
                f"{option} is given with {args.action}",
                hint=f"It belongs to {' and '.join(actions)}.",
            )


def _models(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [each for each in told.get("data") or () if isinstance(each, dict)]


def _all(models: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            each.get("name"),
            _state(each),
            _size(each),
            ", ".join(each.get("aliases") or ()),
            each.get("source", ""),
        )
        for each in models
    ]
    lines = [table(rows, ("model", "state", "memory", "also called", "source"))] if rows else []
    # Only administrators are told why.
    lines += [f"  {each['name']}: {each['error']}" for each in models if each.get("error")]
    return "\n".join(lines)


def _running(models: Sequence[Mapping[str, Any]]) -> str:
    now = time.time()
    rows = [
        (
            each.get("name"),
            _state(each),
            _size(each),
            each.get("num_leases", 0),
            each.get("num_waiting", 0),
            each.get("num_restarts", 0),
            f"{each['load_seconds']:.1f} s" if each.get("load_seconds") is not None else "",
            format_age(now - each["last_used"]) if each.get("last_used") is not None else "never",
        )
        for each in models
    ]
    header = ("model", "state", "memory", "requests", "waiting", "restarts", "loaded in", "used")
    return table(rows, header) if rows else ""


def _state(model: Mapping[str, Any]) -> str:
    """The state, with what is being done to load the model."""
    progress = model.get("progress")
    pinned = ", pinned" if model.get("pinned") else ""
    return f"{model.get('state')}{pinned}{f': {progress}' if progress else ''}"


def _size(model: Mapping[str, Any]) -> str:
    return "" if model.get("nbytes") is None else format_bytes(model["nbytes"])
