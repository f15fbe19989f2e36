"""The parts of a JSON schema that are schemas themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

# Under these, names are those of properties or definitions, and no keywords.
_NAMED = frozenset({"$defs", "definitions", "properties", "patternProperties", "dependentSchemas"})
_VALUES = frozenset({"const", "enum", "default", "examples"})  # no schemas are in these


def changed(part: Any, change: Callable[[dict[str, Any]], Any], names: bool = False) -> Any:
    """The part with each schema in it, from the inside out, as `change` makes it anew.

    Also what stands at unknown keywords, which a reference may lead to. `names`: the keys of the
    part are no keywords.
    """
    if isinstance(part, list):
        return [changed(each, change) for each in part]
    if not isinstance(part, Mapping):
        return part
    found = {
        name: value if name in _VALUES and not names else changed(value, change, is_named)
        for name, value, is_named in _entries(part, names)
    }
    return found if names else change(found)


def inner(part: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The next schemas inside one, each with its JSON pointer from there (RFC 6901)."""
    for name, value, is_named in _entries(part, False):
        if name not in _VALUES:
            yield from _within(f"/{escaped(name)}", value, is_named)


def _within(place: str, value: Any, is_named: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(value, Mapping) and not is_named:
        yield place, value
        return
    steps = (
        value.items()
        if isinstance(value, Mapping)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for step, each in steps:
        if isinstance(each, Mapping):
            yield f"{place}/{escaped(str(step))}", each


def _entries(part: Mapping[str, Any], names: bool) -> Iterator[tuple[str, Any, bool]]:
    """Keys, values, and whether the keys of the value are names."""
    return ((name, value, not names and name in _NAMED) for name, value in part.items())


def escaped(step: str) -> str:
    """A step of a JSON pointer, as it is written (RFC 6901)."""
    return step.replace("~", "~0").replace("/", "~1")
