"""References in the alternatives of a JSON schema, replaced by what they refer to.

llguidance sees whether alternatives of `oneOf` can overlap only where they are written out. So a
union of named objects, as programs make them of classes, would be refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_WRITTEN = 20_000  # parts that are written out, before a last reference is followed
_VALUES = frozenset({"const", "enum", "default", "examples"})  # no schemas are in these
MAX_DEPTH = 16  # references that lead to one another
# What may stand beside `$ref` and says nothing of the values.
_NOTES = frozenset(
    {"$ref", "$comment", "title", "description", "default", "examples", "deprecated"}
)


def written_out(schema: Any) -> Any:
    """The schema, in which alternatives of `oneOf` are no references to other parts of it.

    One that leads back to itself stays, and so do one that leads nowhere, and those behind the
    first MAX_WRITTEN parts.
    """
    return _Writer(schema).written(schema, ())


class _Writer:
    """Writes out the parts of a schema."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._num_left = MAX_WRITTEN

    def written(self, part: Any, inside: tuple[str, ...]) -> Any:
        """A part that was reached by references `inside` of one another."""
        self._num_left -= bool(inside)
        if isinstance(part, list):
            return [self.written(each, inside) for each in part]
        if not isinstance(part, Mapping):
            return part
        found = dict(part)
        for name, value in part.items():
            if name == "oneOf" and isinstance(value, list):
                found[name] = [self._alternative(each, inside) for each in value]
            elif name not in _VALUES:
                found[name] = self.written(value, inside)
        return found

    def _alternative(self, part: Any, inside: tuple[str, ...]) -> Any:
        name = part.get("$ref") if isinstance(part, Mapping) else None
        if not isinstance(name, str) or not part.keys() <= _NOTES:
            return self.written(part, inside)
        target = at(self._root, name)
        leads_on = isinstance(target, (Mapping, bool)) and name not in inside
        if not leads_on or len(inside) == MAX_DEPTH or self._num_left <= 0:
            return part
        return self._alternative(target, (*inside, name))


def at(root: Any, name: str) -> Any:
    """The part of a schema at a JSON pointer behind `#` (RFC 6901); None where there is none."""
    if name != "#" and not name.startswith("#/"):
        return None
    part = root
    for step in name.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, Mapping):
            part = part.get(step)
        elif isinstance(part, list) and step.isdigit() and int(step) < len(part):
            part = part[int(step)]
        else:
            return None
    return part
