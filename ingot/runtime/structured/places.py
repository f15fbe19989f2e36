"""Where in a schema something is that no output can be held to, which llguidance does not tell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ingot.runtime.structured.outputs import StructuredOutputsParams
from ingot.runtime.structured.parts import inner
from ingot.runtime.structured.references import at

# What a refusal may cost: schemas that are tried, and the characters of their texts together.
MAX_TRIES, MAX_CHARS = 100, 1 << 18
FEW = 8  # parts that are tried one by one
_JSON_RULE = "%json "
_DEFINED = ("/$defs/", "/definitions/")  # what something else refers to, or nothing
_FOR_ALL = ("$schema", "$id", "$defs", "definitions")  # that parts may need of the whole

Named = tuple[str, Mapping[str, Any]]  # a JSON pointer, and the schema there


def place_of(outputs: StructuredOutputsParams, fault: Callable[[Any], str | None]) -> str | None:
    """The place of a fault: the innermost schema that has it by itself. None if it is not found.

    `fault`: what the library has to say against a schema, or None.
    """
    for rule, schema in _schemas(outputs):
        if (found := fault(schema)) is not None:
            return f"{rule}{_Search(schema, found, fault).innermost()}"
    return None


def _schemas(outputs: StructuredOutputsParams) -> Iterator[tuple[str, Any]]:
    """Schemas that are asked for, with the rules of a grammar that they are in."""
    if outputs.json is not None:
        yield "", json.loads(str(outputs.json))
    for line in (outputs.grammar or "").splitlines():
        rule, marked, text = line.partition(_JSON_RULE)
        try:
            schema = json.loads(text) if marked else None
        except (ValueError, RecursionError):
            continue  # no grammar as this program writes them
        if isinstance(schema, Mapping):
            yield rule.partition(":")[0].strip(), schema


class _Search:
    """Goes from a schema with a fault into the parts that have the same one."""

    def __init__(self, root: Any, found: str, fault: Callable[[Any], str | None]) -> None:
        self._root, self._found, self._fault = root, found, fault
        self._for_all = {name: root[name] for name in _FOR_ALL if name in root}
        self._tries_left, self._chars_left = MAX_TRIES, MAX_CHARS - len(json.dumps(root))
        self._seen: set[object] = set()  # places, as references spell them

    def innermost(self) -> str:
        """The JSON pointer of the part, behind `#`."""
        place, part = "#", self._root
        while True:
            self._seen.add(place)
            if (step := self._inner(part)) is not None:
                place, part = place + step[0], step[1]
            elif (target := self._referred(part)) is not None:
                place, part = target
            else:
                return place

    def _inner(self, part: Any) -> Named | None:
        parts = [each for each in inner(part) if each[1].get("$ref") not in self._seen]
        parts.sort(key=lambda each: each[0].startswith(_DEFINED))
        while len(parts) > FEW:  # of so many, the half that has it
            half = parts[: len(parts) // 2]
            parts = half if self._has_it(_object(half)) else parts[len(half) :]
        return next((each for each in parts if self._has_it(each[1])), None)

    def _referred(self, part: Any) -> Named | None:
        name = part.get("$ref")
        if not isinstance(name, str) or name in self._seen:
            return None
        target = at(self._root, name)
        return (name, target) if isinstance(target, Mapping) and self._has_it(target) else None

    def _has_it(self, part: Mapping[str, Any]) -> bool:
        alone = {**self._for_all, **part}
        self._tries_left -= 1
        self._chars_left -= len(json.dumps(alone))
        if self._tries_left < 0 or self._chars_left < 0:
            return False
        return self._fault(alone) == self._found


def _object(parts: Iterable[Named]) -> Mapping[str, Any]:
    """A schema that has a fault where one of the parts has it."""
    return {"properties": {str(number): part for number, (_, part) in enumerate(parts)}}
