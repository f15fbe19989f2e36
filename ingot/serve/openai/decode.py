"""Bodies of requests as structs. What is wrong is a `FieldError` with the path of its field."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable
from typing import TypeVar, cast

import msgspec

from ingot.artifact.decoding import json_decoder
from ingot.runtime.structured.outputs import depth_exceeds
from ingot.serve.openai.fields import FieldError
from ingot.serve.openai.requests import IGNORED

R = TypeVar("R")

MAX_DEPTH = 64
MAX_REPORTED = 256  # names of unknown fields, after which no further one is logged

_log = logging.getLogger(__name__)
_PATH = re.compile(r"(.*?) - at (?:`key` in )?`\$\.?(.*)`", re.DOTALL)
# As JSON calls the types of Python.
_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_TYPE = re.compile(rf"\b({'|'.join(_TYPES)})\b")
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)


def decode(body: bytes, kind: type[R]) -> R:
    """A body as a struct of that kind. Raises FieldError."""
    try:
        body.decode()  # msgspec passes over names that nobody asks for, whatever their bytes
        _refuse_deep(body)
        return cast(R, json_decoder(kind).decode(body))
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FieldError(None, f"the body is not JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise _too_deep() from None


class UnknownFields:
    """Logs the name of each unknown field once, however many requests have it."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def note(self, body: bytes, kind: type[msgspec.Struct]) -> None:
        """Looks through a body that `decode` has taken."""
        names = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        known = kind.__struct_fields__
        for name in names.keys() - set(known) - IGNORED - self._seen:
            if len(self._seen) < MAX_REPORTED:
                self._seen.add(name)
                _log.warning("ignored a field that is unknown: %s", _described(name, known))


def _described(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name[:80], list(known), 1)
    return f"{name[:80]!r}" + (f" (did its sender mean {near[0]!r}?)" if near else "")


def _refuse_deep(body: bytes) -> None:
    """Raises FieldError for lists and objects in one another deeper than MAX_DEPTH."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    if depth_exceeds(msgspec.json.decode(body), MAX_DEPTH - 1):  # the body is the first level
        raise _too_deep()


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
