"""Fifty schemas of what people ask models for; every value of each is short."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

WORD: Schema = {"type": "string", "minLength": 1, "maxLength": 12}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 999}


def closed(**properties: Any) -> Schema:
    """An object that has these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def some(required: list[str], **properties: Any) -> Schema:
    """An object that must have some of these properties, and may have the others."""
    return {**closed(**properties), "required": required}


def many(items: Any, least: int = 0, most: int = 3) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def text(pattern: str) -> Schema:
    return {"type": "string", "pattern": pattern}


SCHEMAS: tuple[Schema, ...] = (
    # values
    {"type": "boolean"},
    {"type": "null"},
    {"type": "integer", "minimum": -5, "maximum": 17},
    {"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 1000},
    {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.01},
    {"type": "integer", "minimum": 0, "maximum": 600, "multipleOf": 12},
    {"type": "string", "maxLength": 20},
    {"type": "string", "minLength": 5, "maxLength": 9},
    {"type": ["string", "null"], "maxLength": 8},
    {"type": ["integer", "boolean"], "minimum": 0, "maximum": 99},
    # chosen and fixed
    {"enum": ["red", "green", "blue"]},
    {"enum": [1, "1", None, True, [1], {"a": 1}]},
    {"const": "yes"},
    {"const": {"kind": "fixed", "values": [1, 2, 3]}},
    {"type": "string", "enum": ["é", "日本", '"quoted"', "back\\slash", "🙂"]},
    # patterns and formats
    text(r"^[A-Z]{2}[0-9]{4}$"),
    text(r"^(Mr|Mrs|Dr)\. [A-Z][a-z]{1,9}$"),
    text(r"^[a-z]{1,8}(-[a-z]{1,8}){0,3}$"),
    text(r"^\+?[0-9]{3}-[0-9]{7}$"),
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    # arrays
    many({"type": "boolean"}, 1, 5),
    many(WORD, 2, 4),
    many(many(COUNT, 1, 3), 1, 3),
    {"type": "array", "prefixItems": [WORD, COUNT], "items": False, "minItems": 2},
    {"type": "array", "prefixItems": [WORD], "items": COUNT, "minItems": 1, "maxItems": 3},
    many({"enum": ["a", "b", "c"]}, 0, 6),
    # objects
    closed(name=WORD, age=COUNT),
    closed(name=WORD, tags=many(WORD), active={"type": "boolean"}),
    some(["id"], id=COUNT, note=WORD, parent={"type": ["integer", "null"], "maximum": 9}),
    some([], a=COUNT, b=COUNT, c=COUNT),
    closed(point=closed(x=COUNT, y=COUNT), label=WORD),
    closed(a=closed(b=closed(c=closed(d={"type": "boolean"})))),
    closed(**{"key with spaces": WORD, "ключ": COUNT, 'a"b': {"type": "null"}}),
    {**some(["x"], x=COUNT), "title": "with words for people", "description": "and more"},
    closed(size={"type": "number", "minimum": -1, "maximum": 1, "multipleOf": 0.5}),
    {**closed(fixed=COUNT), "additionalProperties": False, "minProperties": 1},
    # alternatives
    {"anyOf": [closed(cat=WORD), closed(dog=COUNT)]},
    {"anyOf": [{"type": "null"}, COUNT, many(COUNT, 1, 2)]},
    {"oneOf": [{"type": "string", "maxLength": 6}, {"type": "boolean"}]},
    {"oneOf": [closed(kind={"const": "a"}, x=COUNT), closed(kind={"const": "b"}, y=WORD)]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 40}]},
    {"allOf": [some(["a"], a=COUNT, b=WORD), {"required": ["b"]}]},
    # references
    {"$ref": "#/$defs/pair", "$defs": {"pair": closed(left=COUNT, right=COUNT)}},
    {"$defs": {"word": WORD}, **many({"$ref": "#/$defs/word"}, 1, 3)},
    {
        "$defs": {"leaf": closed(value=COUNT), "node": closed(left={"$ref": "#/$defs/leaf"})},
        **closed(root={"$ref": "#/$defs/node"}, other={"$ref": "#/$defs/leaf"}),
    },
    # what clients send
    closed(
        title=WORD,
        rating={"type": "integer", "minimum": 1, "maximum": 5},
        verdict={"enum": ["good", "bad"]},
        reasons=many({"type": "string", "maxLength": 25}, 1, 2),
    ),
    closed(
        function=text("^[a-z_]{1,10}$"),
        arguments=some(["unit"], unit={"enum": ["C", "F"]}, days=COUNT),
    ),
    closed(
        people=many(closed(first=WORD, last=WORD, born={"type": "string", "format": "date"}), 1, 2)
    ),
)
