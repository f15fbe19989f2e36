"""Keywords of a JSON schema, spelled so that llguidance takes them as the specification does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ingot.errors import GrammarError
from ingot.runtime.structured.parts import changed

OPTIONS = "x-guidance"  # of the library, at the root of a schema: some make it take more

_COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "minContains", "maxContains",
)  # fmt: skip

_TOUCHED = {*_COUNTS, "uniqueItems", "pattern", "patternProperties", "format"}

# The years 0001 to 9999, which are all that most programs know. In leap years February is longer.
_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_OF_FOUR = "(0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = f"([0-9]{{2}}{_OF_FOUR}|{_OF_FOUR}00)"
_DAY = (
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"({_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
# Without leap seconds, which are only valid at the last minute of a day in UTC.
_HOUR = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_HOUR}:[0-5][0-9](\\.[0-9]{{1,9}})?([Zz]|[+-]{_HOUR})"
# The library takes any 29th of February, and a leap second at any minute.
_FORMATS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}[Tt]{_TIME}$"}

# White space of ECMAScript. In the library's expressions it is that of Unicode: U+0085 is of it,
# and U+FEFF is not.
_SPACES = r"\t\n\x0b\x0c\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)

# The library's time grows with the cube of them: a second at 200, and it takes a minute at 500.
MAX_PATTERNS = 100
# An object of more is beyond the library's bound on symbols, of which a property that may be left
# out takes eight, and another one four. It takes seconds to find that, as time grows with the
# square.
MAX_OPTIONAL, MAX_PROPERTIES = 3750, 7500
# Of the different whole `multipleOf` together, without the zeros at their ends: about the states
# that the library makes of them before its first mask, without a bound. A second, at that many.
MAX_STEPS = 150_000

_OLD_DRAFT = re.compile(r"^https?://json-schema\.org/draft-0[3-7]/schema#?$")
_CONTENT = ("contentEncoding", "contentMediaType")


def as_meant(schema: Mapping[str, Any]) -> Any:
    """The schema as the library has to be given it. Raises GrammarError for a keyword of an old
    draft that no text can be held to."""
    old = isinstance(draft := schema.get("$schema"), str) and _OLD_DRAFT.match(draft)
    num_patterns = 0
    steps: set[int] = set()

    def change(part: dict[str, Any]) -> dict[str, Any]:
        nonlocal num_patterns
        _check_properties(part)
        if "multipleOf" in part:
            steps.add(_step(part["multipleOf"]))
            _check_steps(steps)
        num_patterns += len(_names(part.get("patternProperties")))
        if num_patterns > MAX_PATTERNS:
            raise GrammarError(
                f"no output can be held to this: too many patternProperties, over {MAX_PATTERNS}",
                hint="Use one expression with alternatives for equal schemas.",
            )
        return _old_part(part) if old else _part(part)

    if OPTIONS in schema:
        raise GrammarError(
            f'no output can be held to this: Unimplemented keys: ["{OPTIONS}"], at #',
            hint="Leave it out. White space has parameters of its own.",
        )
    _check_properties(schema)  # before all of them are gone through
    return changed(schema, change)


def _check_properties(part: Mapping[str, Any]) -> None:
    names = _names(part.get("properties"))
    required = part.get("required")
    needed = len(required) if isinstance(required, list) else 0
    if len(names) > MAX_PROPERTIES or len(names) - needed > MAX_OPTIONAL:
        raise GrammarError(
            f"no output can be held to this: too many properties of an object, {len(names)}",
            hint=f"Name at most {MAX_PROPERTIES}, of which {MAX_OPTIONAL} may be left out.",
        )


def _step(multiple: Any) -> int:
    """Of a number, without the zeros at its end; 0 for one that is not whole."""
    step = int(multiple) if isinstance(multiple, (int, float)) and multiple % 1 == 0 else 0
    while step and step % 10 == 0:
        step //= 10
    return abs(step)


def _check_steps(steps: set[int]) -> None:
    if sum(steps) > MAX_STEPS:
        raise GrammarError(
            f"no output can be held to this: multipleOf is too large, {max(steps)}",
            hint=f"All of a schema may be {MAX_STEPS} together, without zeros at their ends.",
        )


def _names(part: Any) -> Mapping[str, Any]:
    return part if isinstance(part, Mapping) else {}


def _old_part(part: dict[str, Any]) -> dict[str, Any]:
    """Of a draft up to 7, in which the content of strings may be asserted."""
    for name in _CONTENT:
        if isinstance(part.get(name), str):
            raise GrammarError(
                f"no output can be held to {name} of this draft",
                hint="Leave it out, or $schema: since draft 2019-09 it is an annotation.",
            )
    return _part(part)


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if _TOUCHED.isdisjoint(part):
        return part
    if part.get("uniqueItems") is False:
        del part["uniqueItems"]
    for name in _COUNTS:
        if isinstance(count := part.get(name), float) and count.is_integer():
            part[name] = int(count)
    if isinstance(pattern := part.get("pattern"), str):
        part["pattern"] = _as_rust(pattern)
    if isinstance(patterns := part.get("patternProperties"), dict):
        part["patternProperties"] = {_as_rust(each): of for each, of in patterns.items()}
    known = part.get("format")
    if isinstance(known, str) and known in _FORMATS:
        del part["format"]
        _add_pattern(part, _FORMATS[known])
    return part


def _add_pattern(part: dict[str, Any], pattern: str) -> None:
    if "pattern" not in part:
        part["pattern"] = pattern
    elif isinstance(every := part.get("allOf", []), list):  # anything else is refused as it is
        part["allOf"] = [*every, {"pattern": pattern}]


def _as_rust(pattern: str) -> str:
    """An expression of ECMAScript, with its white space."""
    classes = {"s": f"[{_SPACES}]", "S": f"[^{_SPACES}]"}
    return _ESCAPE.sub(lambda found: classes.get(found[1], found[0]), pattern)
