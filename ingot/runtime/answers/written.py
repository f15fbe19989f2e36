"""Rules of a grammar for calls that a request asks for, in the format of the model's family."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ingot.runtime.answers.formats import Head, ToolFormat
from ingot.runtime.answers.schemas import kinds, resolved
from ingot.runtime.answers.values import Json, Literals, Tagged
from ingot.runtime.structured.meanings import OPTIONS, as_meant
from ingot.runtime.structured.references import written_out
from ingot.runtime.structured.sizes import check_size
from ingot.runtime.structured.spelling import literal

TEXT = "/(?s:.*)/"
ONE_LINE = " ?"  # white space in calls, as models are trained to write them
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|.', re.DOTALL)
Rules = Iterator[tuple[str, str]]


def calls(
    tool_format: ToolFormat, tools: Sequence[Any], most: int, tags: Mapping[str, int]
) -> dict[str, str]:
    """The rules of one call, or of several; the first is `calls`."""
    middle, end = tool_format.middle, tool_format.end
    # A lexer does not go back: of two marks that begin alike, it must not have to choose one.
    space = "\n" if middle.startswith("\n") and end.startswith("\n") else ""
    marks = (tool_format.begin, space, middle.removeprefix(space), end.removeprefix(space))
    begin, behind, between, end = (literal(mark, tags) for mark in marks)
    more = f" ({behind} {between} call){{0,{most - 1}}}" if most > 1 and middle else ""
    names = [f"call_{place}" for place in range(len(tools))]
    rules = {"calls": f"{begin} call{more} {behind} {end}".strip(), "call": " | ".join(names)}
    for place, tool in enumerate(tools):
        rules.update(_call(tool_format, place, tool["function"], tags))
    return rules


def schema_text(schema: Mapping[str, Any], whitespace: str) -> str:
    """The text of a schema, as a grammar takes it."""
    check_size(schema)
    options = {"whitespace_pattern": whitespace}
    return json.dumps({**as_meant(written_out(schema)), OPTIONS: options}, ensure_ascii=False)


def text_until(name: str, end: str, tags: Mapping[str, int]) -> Rules:
    """The rules of any text that ends with this mark, which it has nowhere else."""
    found = [end.index(tag) for tag in tags if tag in end]
    if found:  # a text has no token of a tag, and so ends at one
        yield name, f"{name.upper()} {literal(end[min(found) :], tags)}"
        yield name.upper(), TEXT
    else:
        yield f"{name}[suffix={literal(end, {})}]", TEXT


def _call(
    row: ToolFormat, place: int, function: Mapping[str, Any], tags: Mapping[str, int]
) -> Rules:
    name = f"call_{place}"
    schema = {"type": "object", **(function.get("parameters") or {})}
    if row.asks_object:
        yield name, _object(row, place, function["name"])
        yield f"arguments_{place}", f"%json {schema_text(schema, ONE_LINE)}"
        return
    head = row.head
    assert head is not None, "a format has a head, or is an object"
    yield name, f"{_head(head, function['name'], tags)} arguments_{place}"
    notation = row.asked
    if isinstance(notation, Json):
        yield f"arguments_{place}", f"%json {schema_text(schema, ONE_LINE)}"
    elif isinstance(notation, Tagged):
        yield from _tagged(notation, f"arguments_{place}", schema, tags)
    else:
        yield from _literals(notation, f"arguments_{place}", schema, tags)


def _object(row: ToolFormat, place: int, name: str) -> str:
    key, arguments = row.object or ("", "")
    quoted = json.dumps(name, ensure_ascii=False)
    number = f'{_tokens(f"{{{json.dumps(row.counted)}: ")} /"[0-9]"/ ' if row.counted else ""
    begin = ", " if number else "{"
    head = _tokens(f'{begin}"{key}": {quoted}, "{arguments}": ')
    return f'{number}{head} arguments_{place} "}}"'


def _tokens(text: str) -> str:
    """The beginning of an object, as the tokens of JSON that it has.

    An answer that is asked for may begin as a call does, and a lexer does not go back: it must not
    be led past the place where they part.
    """
    parts = _TOKEN.findall(text)
    return " ".join(literal(part, {}) for part in parts)


def _head(head: Head, name: str, tags: Mapping[str, int]) -> str:
    before, after = head.write
    # The name itself is text, even where it spells a tag.
    number = f"{literal(head.count, {})} /[0-9]{{1,2}}/" if head.count else ""
    parts = (literal(before, tags), literal(name, {}), number, literal(after, tags))
    return " ".join(filter(None, parts))


def _properties(schema: Mapping[str, Any]) -> list[tuple[str, Any, bool]]:
    """The arguments of a tool: their names and schemas, and whether a call must have them."""
    found = schema.get("properties")
    properties = found if isinstance(found, Mapping) else {}
    required = schema.get("required")
    names = required if isinstance(required, list) else []
    return [(name, resolved(each, schema), name in names) for name, each in properties.items()]


def _value(schema: Any, root: Mapping[str, Any]) -> str:
    """JSON of one argument. References lead to the definitions of the whole."""
    given = schema if isinstance(schema, Mapping) else {}
    shared = {key: root[key] for key in ("$defs", "definitions", OPTIONS) if key in root}
    return f"%json {schema_text({**shared, **given}, ONE_LINE)}"


def _words(schema: Any, found: frozenset[str]) -> list[str]:
    """The strings that an argument may be, where the schema lists them."""
    if found != {"string"} or not isinstance(schema, Mapping):
        return []
    listed = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []


def _choice(words: Sequence[str]) -> str:
    return " | ".join(literal(word, {}) or '""' for word in words)


def _tagged(row: Tagged, name: str, schema: Mapping[str, Any], tags: Mapping[str, int]) -> Rules:
    """Arguments in tags, in the order of the schema. Strings are free up to their end."""
    parts, line = [], "\n" if row.lines else ""
    for place, (key, each, needed) in enumerate(_properties(schema)):
        rule = f"{name}_{place}"
        between = f"\n{row.value[0]}" if row.value[0] else line
        end, found = f"{line}{row.value[1]}", kinds(each, schema)
        told = f"{row.told}{str('string' in found).lower()}" if row.told else ""
        begin = f"{literal(row.key[0], tags)} {literal(key, {})} " + literal(
            f"{told}{row.key[1]}{between}", tags
        )
        newline = literal("\n", {})
        if words := _words(each, found):
            yield rule, f"{begin} ({_choice(words)}) {literal(end, tags)} {newline}"
        elif "string" in found:
            yield rule, f"{begin} {rule}_text {newline}"
            yield from text_until(f"{rule}_text", end, tags)
        else:
            yield rule, f"{begin} {rule}_json {literal(end, tags)} {newline}"
            yield f"{rule}_json", _value(each, schema)
        parts.append(rule if needed else f"{rule}?")
    yield name, " ".join((*parts, literal(row.closes[0], tags)))


def _literals(
    row: Literals, name: str, schema: Mapping[str, Any], tags: Mapping[str, int]
) -> Rules:
    """Arguments with names, in the order of the schema, and commas between them."""
    properties, closing = _properties(schema), literal(row.closing, {})
    yield name, f"{name}_0_first"
    for place, (key, each, needed) in enumerate(properties):
        rule, after = f"{name}_{place}", f"{name}_{place + 1}"
        for way, begin in (("first", ""), ("more", f"{literal(row.comma, {})} ")):
            if way == "more" and not place:
                continue
            left_out = "" if needed else f" | {after}_{way}"
            yield f"{rule}_{way}", f"{begin}{rule} {after}_more{left_out}"
        yield rule, f"{literal(f'{key}{row.assign}', {})} {rule}_value"
        found = kinds(each, schema)
        if row.quote and found == {"string"} and not _words(each, found):
            yield f"{rule}_value", f"{literal(row.quote, tags)} {rule}_text"
            yield from text_until(f"{rule}_text", row.quote, tags)
        elif row.quote and found == {"string"}:
            quote = literal(row.quote, tags)
            yield f"{rule}_value", f"{quote} ({_choice(_words(each, found))}) {quote}"
        elif found == {"boolean"} and not row.quote:
            yield f"{rule}_value", '"True" | "False"'
        else:
            yield f"{rule}_value", _value(each, schema)
    for way in ("first", "more") if properties else ("first",):
        yield f"{name}_{len(properties)}_{way}", closing
