"""Options of a model that is served: how it is opened, how long it stays, and how it chats."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ingot.cli.arguments import NUM_SPECULATIVE_TOKENS, SPECULATIVE, Argument
from ingot.cli.numbers import human_bytes, human_int, whole_number
from ingot.cli.origins import field_of, parsed
from ingot.cli.serve_options import seconds
from ingot.cli.template_options import CHAT_TEMPLATE, given_template
from ingot.errors import UsageError

if TYPE_CHECKING:
    from ingot.serve.openai.chat_defaults import ChatDefaults

PIN = "pin"
MODEL_OPTIONS = (
    Argument(
        "--max-model-len N",
        "longest sequence to make room for (default: the artifact's limit)",
        human_int,
    ),
    Argument("--max-num-seqs N", "sequences at once (default: the artifact's limit)", human_int),
    Argument(
        "--kv-cache-bytes SIZE",
        "memory for keys and values, such as 4GB (default: what full use can need; at most "
        "half of what is free)",
        human_bytes,
    ),
    Argument("--threads N", "default: one per processor that may be used", human_int),
    Argument("--device NAME", "cpu, cuda or cuda:1 (default: auto)"),
    SPECULATIVE,
    NUM_SPECULATIVE_TOKENS,
    Argument("--seed N", "seeds requests that have no seed (default: 0)", int),
    Argument("--keep-alive S", "unload a model that nobody asked for so long", seconds),
    Argument(
        "--priority N",
        "where memory is short, idle models of larger numbers go first (default: 0)",
        int,
    ),
    Argument(
        "--stream-interval S",
        "where a step takes less than a quarter of that, a stream is sent tokens so often "
        "(default: 0.03; 0: after each step)",
        seconds,
    ),
    Argument("--max-sessions N", "sessions that clients keep (default: 256)", whole_number),
    Argument("--session-bytes SIZE", "bytes of their states (default: no bound)", human_bytes),
    Argument(
        "--session-idle S",
        "close a session that nobody asked for so long (default: 1800; 0: no bound)",
        seconds,
    ),
    Argument(
        "--prompt-cache DIR",
        "keep prefixes of prompts in this folder, and find them again after a restart",
        str,
    ),
    Argument(
        "--prompt-cache-bytes SIZE", "the most bytes of its files (default: 10GB)", human_bytes
    ),
    Argument("--pin", "keep it loaded when it is idle or memory is short"),
    Argument(
        "--watchdog S",
        "kill and restart an engine that has requests and makes no step for so long (default: 60)",
        seconds,
    ),
)
CHAT_OPTIONS = (
    CHAT_TEMPLATE,
    Argument("--system TEXT", "the system message of those that have none"),
    Argument(
        "--think",
        "whether models think before they answer, which their chat templates need a switch for "
        "(default: as the templates have it)",
        choices=("on", "off"),
    ),
)
_SETTINGS = {field_of(option) for option in MODEL_OPTIONS} - {PIN}
_OPTIONS = {field_of(option): option for option in (*MODEL_OPTIONS, *CHAT_OPTIONS)}
_FIELDS = {"max_model_len": "context", "max_num_seqs": "seats", "kv_cache_bytes": "kv_bytes"}


def given_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `ModelSettings` that options say, by the options' names."""
    return {_FIELDS.get(n, n): v for n, v in given.items() if n in _SETTINGS and v is not None}


def given_chats(given: Mapping[str, Any]) -> ChatDefaults:
    """Options on conversations, by their names. Raises UsageError for a template that is
    none."""
    from ingot.serve.openai.chat_defaults import ChatDefaults

    think = given.get("think")
    return ChatDefaults(
        template=given_template(given.get("chat_template")),
        system=given.get("system") or "",
        thinks=None if think is None else think == "on",
    )


def own_options(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The options of single models, from texts such as `bard.threads=2`. Raises UsageError."""
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        left, equals, value = text.partition("=")
        name, _, option = left.rpartition(".")
        field = option.replace("-", "_")
        if not (name and equals and field in _OPTIONS):
            raise UsageError(
                f"--set is {text!r}",
                hint="Write NAME.OPTION=VALUE, such as bard.threads=2. Options: "
                f"{', '.join(each.replace('_', '-') for each in _OPTIONS)}.",
            )
        found.setdefault(name, {})[field] = parsed(_OPTIONS[field], value, f"--set {left}")
    return found


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of models that the command line says; some verbs have only those of opening."""
    values = {name: getattr(args, name, None) for name in _OPTIONS}
    # Zero is a value, and equal to False.
    return {name: v for name, v in values.items() if v is not None and v is not False}
