"""Decoders of JSON and of what it says, which threads share.

msgspec learns a type when it first decodes one, in Python code that lets other threads run. Before
0.23 it has no lock there: a second thread that decodes the same type meanwhile takes what is half
learnt, and the process ends with SIGSEGV. So types are learnt one after the other.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_LEARNING = threading.Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of a type, made once."""
    if (found := _decoders.get(kind)) is not None:
        return found
    with _LEARNING:
        if kind not in _decoders:
            _decoders[kind] = msgspec.json.Decoder(kind)
        return _decoders[kind]


def converted(value: Any, kind: type[T]) -> T:
    """What JSON has said, as a value of that type. Raises what `msgspec.convert` raises."""
    json_decoder(kind)  # has learnt the type
    return msgspec.convert(value, kind, str_keys=True)


def decode_json(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """The value of that type. Raises what `msgspec.json.decode` raises."""
    value: T = json_decoder(kind).decode(data)
    return value
