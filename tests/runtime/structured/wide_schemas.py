"""Fifty more schemas, whose values can be long: unbounded, recursive, open, of many names."""

from __future__ import annotations

from typing import Any

from tests.runtime.structured.schemas import COUNT, WORD, Schema, closed, many, some, text

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
YES: Schema = {"type": "boolean"}
NONE: Schema = {"type": "null"}


def named(name: str) -> Schema:
    """A reference to a definition."""
    return {"$ref": f"#/$defs/{name}"}


def either(*parts: Schema) -> Schema:
    return {"anyOf": list(parts)}


def opened(values: Any, **properties: Any) -> Schema:
    """An object that has these properties, and may have any others with such values."""
    return {**closed(**properties), "additionalProperties": values}


def formatted(name: str) -> Schema:
    return {"type": "string", "format": name}


TREE = {
    **named("tree"),
    "$defs": {"tree": some(["value"], value=COUNT, left=named("tree"), right=named("tree"))},
}
LIST = {
    **named("list"),
    "$defs": {"list": closed(head=WORD, tail=either(named("list"), NONE))},
}
SUM = {
    **named("term"),
    "$defs": {
        "term": either(COUNT, closed(op={"enum": ["+", "-", "*"]}, args=many(named("term"), 2, 2)))
    },
}
JSON = {
    **named("value"),
    "$defs": {
        "value": either(NONE, YES, COUNT, WORD, many(named("value")), opened(named("value"))),
    },
}
SHAPES = {
    "$defs": {
        "circle": closed(kind={"const": "circle"}, radius={"type": "number", "minimum": 0}),
        "square": closed(kind={"const": "square"}, side={"type": "number", "minimum": 0}),
        "group": closed(kind={"const": "group"}, parts=many(named("circle"), 1, 2)),
    },
    "oneOf": [named("circle"), named("square"), named("group")],
}
FOLDER = {
    **named("folder"),
    "$defs": {
        "file": closed(name=WORD, size=COUNT),
        "folder": closed(name=WORD, files=many(named("file")), folders=many(named("folder"))),
    },
}
CITIES = [f"city number {number} of {number % 7} rivers" for number in range(900)]
UNICODE = ["é", "日本語", "🙂🙃", "نعم", "нет", "ñandú", "\u200b", "a\tb", "c\nd", "\\", '"']

WIDE: tuple[Schema, ...] = (
    # unbounded values
    TEXT,
    NUMBER,
    WHOLE,
    {"type": ["number", "string", "null"]},
    {"type": "array", "items": COUNT},
    closed(text=TEXT),
    {"type": "object"},
    {"type": "array", "items": {}},
    # numbers with bounds
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "minimum": -273.15},
    {"type": "integer", "maximum": -1},
    {"type": "number", "minimum": 1e-3, "maximum": 1e3},
    {"type": "integer", "minimum": -1000000007, "maximum": 1000000007},
    {"type": "number", "multipleOf": 0.25, "minimum": -2, "maximum": 2},
    # names
    closed(**dict.fromkeys(UNICODE, COUNT)),
    closed(**{f"field_{number}": YES for number in range(60)}),
    some([], **{f"maybe_{number}": COUNT for number in range(30)}),
    closed(**{"const": WORD, "enum": COUNT, "format": YES, "properties": NONE, "$ref": WORD}),
    closed(**{"": WORD, " ": COUNT, "{": NONE, "a,b": YES}),
    # enums
    {"enum": CITIES},
    closed(city={"enum": CITIES}, twin={"enum": CITIES[::-1]}),
    {"enum": [*range(-300, 300), None, True, 1.5, "300"]},
    {"enum": UNICODE},
    {"const": UNICODE},
    # open objects
    opened(COUNT, name=WORD),
    opened(either(WORD, NONE)),
    {**closed(), "patternProperties": {"^x-[a-z]{1,5}$": WORD}},
    {"type": "object", "additionalProperties": COUNT, "minProperties": 1, "maxProperties": 3},
    {"properties": {"a": COUNT, "b": WORD}, "required": ["b"], "type": "object"},
    # arrays
    many(many(many(YES, 1, 2), 1, 2), 1, 2),
    {"type": "array", "prefixItems": [WORD, COUNT, YES], "minItems": 2, "items": NONE},
    many(either(COUNT, WORD, many(COUNT)), 2, 6),
    many(closed(x=NUMBER, y=NUMBER), 1, 3),
    # patterns and formats
    text(r"^(0|[1-9]\d{0,3})\.\d+\.\d+(-[0-9A-Za-z-]+)?$"),
    text(r"[aeiou]{2}"),
    text(r"^\S+@\S+\.(com|org)$"),
    {"type": "string", "pattern": "^[a-z]+$", "minLength": 3, "maxLength": 9},
    closed(at=formatted("date-time"), on=formatted("date"), by=formatted("time")),
    closed(who=formatted("email"), where=formatted("hostname"), ip=formatted("ipv6")),
    closed(id=formatted("uuid"), wait=formatted("duration")),
    # recursion
    TREE,
    LIST,
    SUM,
    JSON,
    FOLDER,
    # alternatives
    SHAPES,
    either(closed(ok={"const": True}, value=NUMBER), closed(ok={"const": False}, error=TEXT)),
    {"oneOf": [{"type": "string", "maxLength": 9}, many(WORD, 0, 2)]},
    {"allOf": [opened(COUNT, a=COUNT), {"properties": {"b": WHOLE}, "required": ["b"]}]},
    {"type": ["object", "null"], "properties": {"deep": closed(er=closed(still=many(TEXT, 0, 2)))}},
)
