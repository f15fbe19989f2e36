"""Reads a JSON object strictly: without repeated keys and without numbers that JSON has not."""

from __future__ import annotations

import json
from typing import Any

from ingot.errors import ConfigError

# How newer files spell infinity.
INFINITY = {"__float__": "Infinity"}


def parse_json_object(data: bytes, where: str, *, infinite: bool = False) -> dict[str, Any]:
    """The object in JSON text; `where` is what messages call the text.

    `infinite`: it may have the bare word Infinity, as older config.json do, which stands for
    INFINITY.

    Raises ConfigError where it is not a JSON object, or repeats a key.
    """
    constant = _infinity if infinite else _no_constant
    hint = "it must be one JSON object in UTF-8; fetch the file again if it was damaged"
    try:
        value = json.loads(data, object_pairs_hook=_no_duplicates, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}", hint=hint) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{where} holds {type(value).__name__}, not an object", hint=hint)
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key} stands twice")
        found[key] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _infinity(name: str) -> Any:
    return INFINITY if name == "Infinity" else _no_constant(name)
