"""Keywords that llguidance refuses wherever it comes to them, found before it reads a schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ingot.errors import GrammarError
from ingot.runtime.structured.parts import escaped
from ingot.runtime.structured.references import at

_KEYWORDS = frozenset(
    {"not", "if", "then", "else", "contains", "minContains", "maxContains", "propertyNames",
     "dependencies", "dependentRequired", "dependentSchemas", "unevaluatedItems",
     "unevaluatedProperties"}
)  # fmt: skip
_QUOTED = tuple(f'"{name}"' for name in sorted(_KEYWORDS))
_OTHERWISE_READ = ('"$schema"', '"$id"', '"id"')  # by other drafts, or with other references
# Of the keywords behind a type, what is not read where a schema has only other types.
_OF_TYPE = {
    "properties": "object",
    "patternProperties": "object",
    "additionalProperties": "object",
    "prefixItems": "array",
    "items": "array",
}
_ALWAYS = ("allOf", "anyOf", "oneOf")
_NAMED = ("properties", "patternProperties")

Named = tuple[str, Any]  # a JSON pointer behind `#`, and what is there


def check_keywords(schema: Mapping[str, Any], text: str) -> None:
    """Raises GrammarError for a keyword that is not supported, with its place.

    `text`: of the schema. Not all are found here; the library finds the others.
    """
    if not any(map(text.__contains__, _QUOTED)) or any(map(text.__contains__, _OTHERWISE_READ)):
        return
    for place, part in _read(schema):
        if found := sorted(part.keys() & _KEYWORDS):
            names = ", ".join(f'"{name}"' for name in found)
            raise GrammarError(
                f"no output can be held to this: Unimplemented keys: [{names}], at {place}",
                hint="docs/structured_outputs.md lists what is supported.",
            )


def _read(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The schemas that the library reads, about in its order: not all definitions."""
    waiting: list[Named] = [("#", schema)]
    seen: set[str] = set()
    while waiting:
        place, part = waiting.pop()
        if not isinstance(part, Mapping):
            continue
        yield place, part
        inner = list(_inner(place, part))
        name = part.get("$ref")
        if isinstance(name, str) and name not in seen:
            seen.add(name)
            inner.append((name, at(schema, name)))
        waiting.extend(reversed(inner))


def _inner(place: str, part: Mapping[str, Any]) -> Iterator[Named]:
    types = part.get("type", ["object", "array"])
    types = types if isinstance(types, list) else [types]
    for name, value in part.items():
        if name not in _ALWAYS and _OF_TYPE.get(name, "") not in types:
            continue
        if name in _NAMED:
            steps = value.items() if isinstance(value, Mapping) else ()
            yield from ((f"{place}/{name}/{escaped(step)}", each) for step, each in steps)
        elif isinstance(value, list):
            yield from ((f"{place}/{name}/{step}", each) for step, each in enumerate(value))
        elif name not in _ALWAYS:
            yield f"{place}/{name}", value
