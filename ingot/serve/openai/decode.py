"""Bodies of requests as structs. What is wrong is a `FieldError` with the path of its field."""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import msgspec

from ingot.artifact.decoding import converted, json_decoder
from ingot.runtime.structured.outputs import depth_exceeds
from ingot.serve.openai.fields import FieldError
from ingot.serve.openai.requests import IGNORED

R = TypeVar("R")

MAX_DEPTH = 64
_MAX_PATH_CHARS = 200
MAX_REPORTED = 256  # names of unknown fields, after which no further one is logged

_log = logging.getLogger(__name__)
_PATH = re.compile(r"(.*?) - at (?:`key` in )?`\$\.?(.*)`", re.DOTALL)
# As JSON calls the types of Python.
_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_TYPE = re.compile(rf"\b({'|'.join(_TYPES)})\b")
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)


def decode(body: bytes, kind: type[R]) -> tuple[R, Set[str]]:
    """A body as a struct of that kind, and the names of its fields. Raises FieldError."""
    with _field_errors():
        body.decode()  # names that nobody asks for are UTF-8 as well
        try:
            fields = msgspec.json.decode(body)
        except msgspec.ValidationError:
            # A number out of range: who knows the type says in which field, or passes over it.
            return cast(R, json_decoder(kind).decode(body)), frozenset()
        except msgspec.DecodeError:
            if (path := _not_finite(body)) is not None:
                raise FieldError(
                    path,
                    f"{path} is no finite number, and JSON has no others",
                    hint="Send a number, or leave it out.",
                    code="invalid_json",
                ) from None
            raise
    return converted_fields(fields, body, kind)


def converted_fields(fields: Any, data: bytes, kind: type[R]) -> tuple[R, Set[str]]:
    """Converts fields that were parsed already, like `decode`; `data` is their JSON."""
    with _field_errors():
        # Only so many brackets can be that deep.
        if data.count(b"[") + data.count(b"{") > MAX_DEPTH and depth_exceeds(fields, MAX_DEPTH - 1):
            raise _too_deep()
        return converted(fields, kind), fields.keys()


@contextmanager
def _field_errors() -> Iterator[None]:
    try:
        yield
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FieldError(None, f"the body is not JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise _too_deep() from None


def _not_finite(body: bytes) -> str | None:
    """The path of the first NaN or infinity, which programs write that are not strict; None where
    there is none, or the body is wrong in other ways."""
    if b"NaN" not in body and b"Infinity" not in body:
        return None
    try:
        left = [("", json.loads(body, parse_constant=_NotFinite))]
    except (ValueError, RecursionError):
        return None
    while left:
        path, value = left.pop()
        if isinstance(value, _NotFinite):
            # Of half a character, which only this parser takes, no answer could tell.
            return path[:_MAX_PATH_CHARS].encode("utf-8", "backslashreplace").decode() or None
        if isinstance(value, dict):
            left += [(f"{path}.{name}".strip("."), each) for name, each in reversed(value.items())]
        elif isinstance(value, list):
            left += [(f"{path}[{i}]", value[i]) for i in reversed(range(len(value)))]
    return None


class _NotFinite(str):
    """A constant that JSON does not have."""


class UnknownFields:
    """Logs the name of each unknown field once, however many requests have it."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def note(self, names: Set[str], kind: type[msgspec.Struct]) -> None:
        """Looks through the names of the fields of a body."""
        known = kind.__struct_fields__
        for name in names - set(known) - IGNORED - self._seen:
            if len(self._seen) < MAX_REPORTED:
                self._seen.add(name)
                _log.warning("ignored a field that is unknown: %s", _described(name, known))


def _described(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name[:80], list(known), 1)
    return f"{name[:80]!r}" + (f" (did its sender mean {near[0]!r}?)" if near else "")


def _too_deep() -> FieldError:
    return FieldError(
        None, f"the body is nested deeper than {MAX_DEPTH} levels", code="invalid_json"
    )


def _field_error(message: str) -> FieldError:
    """msgspec's message, which ends with the path of the field."""
    found = _PATH.fullmatch(message)
    text, path = found.groups() if found else (message, "")
    missing = _MISSING.fullmatch(text)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return FieldError(path, f"{path} is missing", code="missing_required_parameter")
    param = path.replace("[...]", "") or None
    wanted = _TYPE.sub(lambda word: _TYPES[word[0]], text[:1].lower() + text[1:].replace("`", ""))
    return FieldError(param, f"{param or 'the body'}: {wanted}", code="invalid_value")
