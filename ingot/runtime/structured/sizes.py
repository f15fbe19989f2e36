"""How large the grammar of a JSON schema is at least, before llguidance makes it.

llguidance makes symbols until it has too many, which takes it up to half a second. Here they are
counted by what it makes of each kind of schema, and only where it cannot but make them: it leaves
out, without a word, what may be left out and has no values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from ingot.errors import GrammarError
from ingot.runtime.structured.references import at

MAX_SYMBOLS = 30_000  # of a grammar; the time grows with their square
MAX_RANGES = 150_000  # about as much work as a compile may take

# What says nothing of the values.
_NOTES = frozenset(
    {"$schema", "$comment", "$defs", "definitions", "title", "description", "default", "examples",
     "readOnly", "writeOnly", "deprecated"}
)  # fmt: skip
_OBJECT = frozenset({"type", "properties", "required", "additionalProperties"})
_ARRAY = frozenset({"type", "items", "prefixItems", "minItems", "maxItems"})
_NUMBER = frozenset({"type", "minimum", "maximum"})
_STRING = frozenset({"type", "minLength", "maxLength"})
_KEYS = {
    "object": _OBJECT,
    "array": _ARRAY,
    "number": _NUMBER,
    "integer": _NUMBER,
    "string": _STRING,
    "boolean": frozenset({"type"}),
    "null": frozenset({"type"}),
}
_TYPES, _ALL = list(_KEYS), frozenset().union(*_KEYS.values())
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
MAX_INLINE = 16  # references that lead to one another in `oneOf`, as they are written out


class Size(NamedTuple):
    """Least number of symbols of a grammar, and the work that the ranges of its numbers are: the
    squares of their digits."""

    symbols: int
    ranges: int


def check_size(schema: Mapping[str, Any]) -> None:
    """Raises GrammarError for a schema whose grammar is too large for sure."""
    size = size_of(schema)
    if size.symbols > MAX_SYMBOLS:
        raise GrammarError(
            f"no output can be held to this: too big, {size.symbols} symbols or more",
            hint=f"At most {MAX_SYMBOLS} are taken. Name fewer properties, alternatives or values.",
        )
    if size.ranges > MAX_RANGES:
        raise GrammarError(
            "no output can be held to this: too many ranges of numbers",
            hint="Give fewer numbers a minimum and a maximum of their own, or shorter ones.",
        )


def size_of(schema: Mapping[str, Any]) -> Size:
    """The size of a schema's grammar, at least."""
    counter = _Counter(schema)
    counter.add({name: value for name, value in schema.items() if name != "$id"}, True)
    counter.add_definitions()
    return Size(counter.symbols, sum(digits**2 for *_, digits in set(counter.ranges)))


class _Has(Enum):
    """What is known of the values of a schema."""

    ANY = 0  # all values
    SOME = 1  # some, but not all
    PERHAPS = 2  # not all; perhaps none
    UNKNOWN = 3


_VALUES = (_Has.ANY, _Has.SOME)


class _Counter:
    """Adds up the symbols of schemas."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._is_old = str(root.get("$schema", _DRAFT)).removesuffix("#") != _DRAFT
        self._referred: list[str] = []
        self._inline = 0
        self.symbols = 0
        self.ranges: list[tuple[object, object, object, int]] = []

    def add_definitions(self) -> None:
        """Adds what was referred to, each definition once, until there is too much."""
        seen: set[str] = set()
        while self._referred and self.symbols <= MAX_SYMBOLS:
            name = self._referred.pop()
            if name not in seen:
                seen.add(name)
                self.symbols += 1
                self.add(at(self._root, name), True)

    def add(self, part: Any, needed: bool) -> _Has:
        """Adds a part, if it is sure to be in the grammar, or `needed`: without it, there is no
        grammar at all."""
        if part is True:
            return _Has.ANY
        if not isinstance(part, Mapping):
            return _Has.UNKNOWN
        keys = part.keys() - _NOTES
        if not keys:
            return _Has.ANY
        if len(keys) == 1:
            (key,) = keys
            if key == "$ref":
                return self._reference(part["$ref"])
            if key in ("anyOf", "oneOf"):
                return self._choice(part[key], key == "oneOf")
            if key in ("enum", "const"):
                return self._values([part["const"]] if key == "const" else part["enum"])
        return self._typed(part, keys, needed)

    def _undo(self, mark: tuple[int, int, int], has: _Has) -> _Has:
        self.symbols = mark[0]
        del self._referred[mark[1] :], self.ranges[mark[2] :]
        return has

    def _mark(self) -> tuple[int, int, int]:
        return self.symbols, len(self._referred), len(self.ranges)

    def _reference(self, name: object) -> _Has:
        if not isinstance(name, str):
            return _Has.UNKNOWN
        self._referred.append(name)
        return _Has.SOME  # has a rule of its own, whatever there is in it

    def _choice(self, parts: Any, is_one: bool) -> _Has:
        if not isinstance(parts, list) or len(parts) < 2:
            return _Has.UNKNOWN
        mark, found = self._mark(), set()
        for part in parts:
            before = self._mark()
            found.add(has := self._alternative(part) if is_one else self.add(part, False))
            if has in (_Has.ANY, _Has.UNKNOWN):  # which takes the place of all
                return self._undo(mark, has)
            if self.symbols - before[0] == 1:  # a text: one symbol has all of them
                self.symbols -= 1
        return _Has.SOME if _Has.SOME in found else _Has.PERHAPS

    def _alternative(self, part: Any) -> _Has:
        """Adds an alternative of `oneOf`, in which a reference is written out."""
        if not isinstance(part, Mapping) or part.keys() - _NOTES != {"$ref"}:
            return self.add(part, False)
        if self._inline == MAX_INLINE or not isinstance(part["$ref"], str):
            return _Has.UNKNOWN
        self._inline += 1
        has = self._alternative(at(self._root, part["$ref"]))
        self._inline -= 1
        return has

    def _values(self, values: Any) -> _Has:
        if not isinstance(values, list) or not values:
            return _Has.UNKNOWN
        large = [each for each in values if isinstance(each, (dict, list))]
        self.symbols += sum(map(_symbols, large)) + (len(large) < len(values))
        return _Has.SOME

    def _typed(self, part: Mapping[str, Any], keys: Iterable[str], needed: bool) -> _Has:
        types = part.get("type", _TYPES)
        types = types if isinstance(types, list) else [types]
        if not all(isinstance(each, str) and each in _KEYS for each in types):
            return _Has.UNKNOWN
        if not all(key in _ALL if types is _TYPES else _is_of(key, types) for key in keys):
            return _Has.UNKNOWN
        before = self.symbols
        found = [self._of_type(each, part, needed and len(types) == 1) for each in types]
        if len(types) > 1:  # one symbol has all texts
            texts = sum(each not in ("object", "array") for each in types)
            self.symbols -= min(max(texts - 1, 0), self.symbols - before)
        return _Has.SOME if _Has.SOME in found else _Has.PERHAPS

    def _of_type(self, name: str, part: Mapping[str, Any], needed: bool) -> _Has:
        if name == "object":
            return self._object(part, needed)
        if name == "array":
            return self._array(part)
        if name in ("integer", "number"):
            return self._number(part, name == "integer")
        self.symbols += 1
        if name != "string":
            return _Has.SOME
        least, most = part.get("minLength", 0), part.get("maxLength", math.inf)
        return _Has.SOME if _are_numbers(least, most) and least <= most else _Has.PERHAPS

    def _number(self, part: Mapping[str, Any], whole: bool) -> _Has:
        least, most = part.get("minimum", -math.inf), part.get("maximum", math.inf)
        if not _are_numbers(least, most) or least > most:
            return _Has.PERHAPS
        ends = [each for each in (least, most) if math.isfinite(each)]
        if ends:
            self.ranges.append((whole, least, most, max(len(str(each)) for each in ends)))
        self.symbols += 1
        return _Has.SOME if not whole or all(each == int(each) for each in ends) else _Has.PERHAPS

    def _array(self, part: Mapping[str, Any]) -> _Has:
        first, counts = part.get("prefixItems", []), part.keys() & {"minItems", "maxItems"}
        if not isinstance(first, list) or (first and self._is_old):
            return _Has.PERHAPS
        self.symbols += 1
        more = self.add(part.get("items", True), False) in _VALUES
        if counts:  # how often the items are repeated is not gone into
            least, most = part.get("minItems", 0), part.get("maxItems", math.inf)
            fits = _are_numbers(least, most) and least <= most
            return _Has.SOME if fits and not first and (more or not least) else _Has.PERHAPS
        for each in first:
            if self.add(each, False) not in _VALUES:  # nor can there be others behind it
                break
            self.symbols += 2
        self.symbols += 3 * more
        return _Has.SOME

    def _object(self, part: Mapping[str, Any], needed: bool) -> _Has:
        properties, required = part.get("properties", {}), part.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            return _Has.UNKNOWN
        names = {each for each in required if isinstance(each, str)}
        others = part.get("additionalProperties", True)
        if others is not True and not names <= properties.keys():
            return _Has.PERHAPS
        mark, items, has_all = self._mark(), [], True
        for name, each in properties.items():
            has = self.add(each, needed and name in names)
            if name in names:
                has_all &= has in _VALUES
                if not has_all and not needed:
                    return self._undo(mark, _Has.PERHAPS)
            if name in names or has in _VALUES:
                items.append(name in names)
        self.symbols += len(items)
        if self.add(others, False) in _VALUES:
            self.symbols += 4 + bool(items)
            items.append(False)
        self.symbols += 1 + _in_order(items)
        return _Has.SOME if has_all else _Has.PERHAPS


def _in_order(needed: list[bool]) -> int:
    """Symbols for properties one behind another, of which some are `needed`, and others may be
    left out: then a comma can come before the next one, or none."""
    if not needed:
        return 0
    first = next((place for place, each in enumerate(needed) if each), len(needed))
    behind = sum(1 if each else 3 for each in needed[1:]) - (len(needed) > 1 and not needed[-1])
    return behind + 2 * first + (first < len(needed)) - (first >= len(needed) - 1)


def _symbols(value: Any) -> int:
    """Symbols of one JSON value."""
    if isinstance(value, dict):
        return sum(map(_symbols, value.values())) + 2 * max(len(value), 1) - 1
    if isinstance(value, list):
        return sum(map(_symbols, value)) + 1
    return 1


def _is_of(key: str, types: list[str]) -> bool:
    return key == "type" or any(key in _KEYS[each] for each in types)


def _are_numbers(*values: object) -> bool:
    return all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in values)
