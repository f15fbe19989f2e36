"""Options of `ingot serve` about who may ask, how much, and for how long."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.cli.arguments import Argument, ArgumentGroup, Arguments
from ingot.cli.numbers import human_bytes, human_int, whole_number

if TYPE_CHECKING:
    from ingot.serve.edge.settings import EdgeSettings


def port_number(text: str) -> int:
    """A port from 0, for any free one, to 65535, for argparse."""
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is no port; write a number from 0 to 65535")
    return int(text)


def seconds(text: str) -> float:
    """A time such as `30` or `0.5`; 0 sets no bound. For argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write seconds, such as 30 or 0.5")
    return value


LISTENING = ArgumentGroup(
    "listening",
    "",
    (
        Argument("--host ADDRESS", "default: 127.0.0.1, which this machine alone can reach"),
        Argument("--port N", "default: 8000; 0: any free one, which is printed", port_number),
        Argument("--uds PATH", "listen on a Unix socket, which its owner alone can open", Path),
        Argument("--tls-cert FILE", "certificate chain in PEM; needs --tls-key", Path),
        Argument("--tls-key FILE", "private key of the certificate in PEM", Path),
        Argument(
            "--shutdown-timeout S",
            "seconds that requests have to finish after SIGTERM (default: 30)",
            seconds,
        ),
    ),
)
KEYS = ArgumentGroup(
    "keys",
    "With keys, every route asks for one but /live and /health.",
    (
        Argument("--api-key-file FILE", "keys that are let in; `ingot key` makes them", Path),
        Argument("--allow-no-key", "listen on an address of the network without keys"),
        Argument("--open-health", "let /health name the models to those without a key as well"),
        Argument("--open-admin", "without keys, let anyone load and unload models"),
        Argument(
            "--allow-origin ORIGIN",
            "let pages of this site call from browsers, such as http://localhost:3000; repeated, "
            "of several; '*': of all (default: the server's own page)",
            action="append",
        ),
    ),
)
LIMITS = ArgumentGroup(
    "limits",
    "What is over a limit is refused, and told why. 0 of a queue or a time: no bound.",
    (
        Argument("--max-queue N", "waiting requests of a model (default: 512)", whole_number),
        Argument(
            "--max-queue-tokens N",
            "their tokens, prompt and answer (default: 4 times what the KV cache holds)",
            whole_number,
        ),
        Argument("--max-key-requests N", "requests of a key at a time", whole_number),
        Argument("--max-key-tokens N", "their tokens, prompt and answer", whole_number),
        Argument("--queue-timeout S", "wait for a seat, or a load (default: 60)", seconds),
        Argument("--request-timeout S", "a request in all (default: 600)", seconds),
        Argument(
            "--write-timeout S", "a full send buffer that nobody reads (default: 30)", seconds
        ),
        Argument(
            "--connection-keep-alive S", "a connection without a request (default: 5)", seconds
        ),
        Argument("--body-bytes SIZE", "a request's body (default: 8MB)", human_bytes),
    ),
)
LOGS = ArgumentGroup(
    "logs and metrics",
    "",
    (
        Argument("--log-level", "default: info", choices=("debug", "info", "warning", "error")),
        Argument("--log-format", "default: text", choices=("text", "json")),
        Argument("--log-prompts", "log prompts and answers as well"),
        Argument("--max-log-len N", "characters of a logged text (default: 2000)", human_int),
        Argument(
            "--metrics-compat", "names that /metrics has as well as our own", choices=("vllm",)
        ),
        Argument("--traces", "send OpenTelemetry traces; needs the extra `otel`"),
    ),
)
EDGE_OPTIONS: Arguments = (LISTENING, KEYS, LIMITS, LOGS)

_OTHER_NAMES = {"api_key_file": "key_file", "allow_origin": "origins"}


def edge_settings(args: argparse.Namespace) -> EdgeSettings:
    """Settings from the options, with defaults for those not given."""
    from ingot.serve.edge.settings import ClientLimits, EdgeSettings

    given = {
        _OTHER_NAMES.get(name, name): value
        for name, value in vars(args).items()
        if value is not None and value is not False
    }
    names = [{field.name for field in fields(of)} for of in (ClientLimits, EdgeSettings)]
    limits, rest = ({k: v for k, v in given.items() if k in known} for known in names)
    return EdgeSettings(limits=ClientLimits(**limits), **rest)
