"""Structured outputs: the form that a completion must have, under vLLM's names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ingot.errors import GrammarError
from ingot.runtime.field_checks import flag, refuse_unknown

MAX_BYTES = 256 << 10  # of a schema, regex or grammar, and of all choices together
MAX_DEPTH = 64  # of a schema
MAX_CHOICES = 4096

KINDS = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form of a completion; exactly one of the first five is given.

    json                  a JSON schema, as a dict or as text
    regex                 a regular expression, which the whole completion matches
    choice                a list of texts, one of which the completion is
    grammar               a context-free grammar, in Lark's syntax or in GBNF (llama.cpp)
    json_object           True: any JSON object
    whitespace_pattern    of JSON: a regular expression for what may stand between its tokens.
                          By default a space, or a line break and up to 16 spaces
    disable_any_whitespace
                          of JSON: nothing stands there
    disable_additional_properties
                          of a schema: its objects have no other properties than those listed,
                          unless they say that they have

    Raises GrammarError, which is a RequestError.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False

    def __post_init__(self) -> None:
        if self.json_object is False:  # what vLLM's clients send for "not asked for"
            object.__setattr__(self, "json_object", None)
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise GrammarError(
                f"structured_outputs has {' and '.join(given) or 'none of its kinds'}",
                hint=f"Give exactly one of {', '.join(KINDS)}.",
            )
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            flag(f"structured_outputs.{name}", getattr(self, name))
        for name in ("regex", "grammar", "whitespace_pattern"):
            _check_text(name, getattr(self, name))
        if self.json_object is not None:
            flag("structured_outputs.json_object", self.json_object)
        if self.json is not None:
            object.__setattr__(self, "json", _schema(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))

    @classmethod
    def of(cls, given: Any) -> StructuredOutputsParams | None:
        """Converts an argument: an object of this class, a dict of its fields, or None."""
        if given is None or isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise GrammarError(
                f"structured_outputs is {given!r:.80}",
                hint="structured_outputs must be StructuredOutputsParams, or a dict of its fields.",
            )
        refuse_unknown("structured_outputs", map(str, given), [f.name for f in fields(cls)])
        return cls(**given)


def _check_text(name: str, text: object) -> None:
    if text is None:
        return
    if not isinstance(text, str):
        raise GrammarError(f"structured_outputs.{name} is {text!r:.80}", hint="Give a str.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise GrammarError(
            f"structured_outputs.{name} is not valid UTF-8: character {error.start} is a lone "
            "surrogate"
        ) from error
    if size > MAX_BYTES:
        raise GrammarError(
            f"structured_outputs.{name} has {size} bytes", hint=f"At most {MAX_BYTES} are taken."
        )


def _choices(given: Any) -> tuple[str, ...]:
    if not isinstance(given, (list, tuple)) or not 1 <= len(given) <= MAX_CHOICES:
        raise GrammarError(
            f"structured_outputs.choice is {given!r:.80}", hint=f"Give 1 to {MAX_CHOICES} texts."
        )
    for each in given:
        _check_text("choice", each)
        if not each:
            raise GrammarError("structured_outputs.choice has an empty text")
    _check_text("choice", "".join(given))
    return tuple(given)


def _schema(given: Any) -> str:
    """A schema as the text of JSON, whose size and depth are within bounds."""
    if isinstance(given, str):
        _check_text("json", given)
        given = _parsed(given)
    if not isinstance(given, Mapping):
        raise GrammarError(
            f"structured_outputs.json is {given!r:.80}", hint="Give a JSON schema: an object."
        )
    if depth_exceeds(given, MAX_DEPTH):
        raise GrammarError(
            f"structured_outputs.json is nested more than {MAX_DEPTH} deep",
            hint="Name the inner schemas in $defs, and refer to them by $ref.",
        )
    try:
        text = json.dumps(given, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise GrammarError(f"structured_outputs.json is no JSON: {error}") from error
    _check_text("json", text)
    return text


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"structured_outputs.json is no JSON: {error}") from error


_PLAIN = (str, int, float, bool, type(None))  # nothing is nested in these; told without isinstance


def depth_exceeds(value: Any, most: int) -> bool:
    """Returns whether values are nested deeper than `most`; takes any depth without recursion."""
    level = [value]
    for _ in range(most + 1):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return ()
    return [each for each in value if type(each) not in _PLAIN]
