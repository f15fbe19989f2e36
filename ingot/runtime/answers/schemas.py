"""What the JSON schema of a tool says of a value that was written without quotes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_STEPS = 8  # of references, and of alternatives within alternatives
_NAMES: Mapping[type, str] = {str: "string", bool: "boolean", type(None): "null"}


def parameter(schema: Mapping[str, Any], name: str) -> Any:
    """The schema of a parameter; empty where there is none."""
    properties = schema.get("properties")
    return properties.get(name, {}) if isinstance(properties, Mapping) else {}


def kinds(schema: Any, root: Mapping[str, Any], steps: int = MAX_STEPS) -> frozenset[str]:
    """The names of the types that a value may have; empty where the schema does not say."""
    if not isinstance(schema, Mapping) or not steps:
        return frozenset()
    found = {schema["type"]} if isinstance(schema.get("type"), str) else set[str]()
    if isinstance(schema.get("type"), list):
        found.update(each for each in schema["type"] if isinstance(each, str))
    values = [*_list(schema, "enum"), *([schema["const"]] if "const" in schema else [])]
    if not found:
        found.update(_NAMES.get(type(each), "number") for each in values)
    for key in ("anyOf", "oneOf", "allOf"):
        for each in _list(schema, key):
            found |= kinds(each, root, steps - 1)
    if isinstance(schema.get("$ref"), str):
        found |= kinds(_referred(schema["$ref"], root), root, steps - 1)
    return frozenset(found)


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """A schema, or the one that it refers to within the same document."""
    for _ in range(MAX_STEPS):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        found = _referred(schema["$ref"], root)
        if found is None:
            break
        schema = found
    return schema


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _referred(path: str, root: Mapping[str, Any]) -> Any:
    """What a reference such as `#/$defs/Unit` names; None where it names nothing here."""
    found: Any = root
    for part in path.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
