"""Translation of `response_format` and tool choices to `SamplingParams.structured_outputs`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ingot.errors import GrammarError, RequestError
from ingot.runtime.structured.spelling import WHITESPACE, literal
from ingot.serve.chat.formats import ToolFormat
from ingot.serve.chat.reader import CLOSE, OPEN
from ingot.serve.chat.style import Style
from ingot.serve.chat.tools import check_tools, chosen_tools, forced

MAX_CALLS = 16  # that are asked for at once
TEXT = "/(?s:.*)/"
ONE_LINE = " ?"  # white space in calls, as models are trained to write them


def structured_outputs(
    style: Style,
    prompt: str,
    *,
    response_format: Any = None,
    tools: Any = None,
    tool_choice: Any = None,
    parallel_tool_calls: bool | None = True,
) -> dict[str, Any] | None:
    """Structured outputs that hold an answer to `response_format`, and to calls where `tool_choice`
    asks for them.

    Where the model may reason first, it still may. Raises RequestError for a field that is not
    well formed.
    """
    check_tools(tools, tool_choice)
    schema = _schema(response_format)
    ways: dict[str, str] = {}
    if tools and tool_choice != "none" and (forced(tool_choice) or (schema and style.format)):
        chosen = chosen_tools(tools, tool_choice)
        most = 1 if parallel_tool_calls is False else MAX_CALLS
        ways |= _calls(style, chosen, most)
    if schema is not None and not forced(tool_choice):
        if not ways and not style.thinks:
            return {"json": schema}
        ways["answer"] = f"%json {_schema_text(schema, WHITESPACE)}"
    if not ways:
        return None
    first = [name for name in ("calls", "answer") if name in ways]
    lines = [_start(style, prompt, first), *(f"{name}: {body}" for name, body in ways.items())]
    return {"grammar": "\n".join(lines)}


def _schema(response_format: Any) -> Mapping[str, Any] | None:
    """The schema that `response_format` asks for."""
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else response_format
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise RequestError(
            f"response_format.type is {kind!r:.80}",
            hint="Supported: text, json_object, json_schema.",
        )
    named = response_format.get("json_schema")
    schema = named.get("schema") if isinstance(named, Mapping) else None
    if not isinstance(schema, Mapping):
        raise RequestError(
            f"response_format.json_schema.schema is {schema!r:.80}",
            hint="Give a JSON schema: an object.",
        )
    return schema


def _start(style: Style, prompt: str, ways: Sequence[str]) -> str:
    """The first rules: reasoning where there may be some, then one of these."""
    body = " | ".join(ways)
    if not style.thinks:
        return f"start: {body}"
    begin, end = (literal(tag, style.tags) for tag in (OPEN, CLOSE))
    thought = "thought" if style.opened(prompt) else f"({begin} thought)?"
    by_token = CLOSE in style.tags  # a text never has it, and so needs no suffix
    return "\n".join(
        (
            f"start: {thought} SPACE ({body})",
            "SPACE: /[ \\n]{0,4}/",
            f"thought: ANY {end}\nANY: {TEXT}" if by_token else f"thought[suffix={end}]: {TEXT}",
        )
    )


def _calls(style: Style, tools: Sequence[Any], most: int) -> dict[str, str]:
    """The rules of one call, or of several."""
    tool_format = style.format_of_calls
    marks = (tool_format.begin, tool_format.between, tool_format.end)
    begin, between, end = (literal(mark, style.tags) for mark in marks)
    more = f" ({between} call){{0,{most - 1}}}" if most > 1 else ""
    names = [f"call_{place}" for place in range(len(tools))]
    rules = {"calls": f"{begin} call{more} {end}".strip(), "call": " | ".join(names)}
    for place, tool in enumerate(tools):
        rules.update(_call(tool_format, place, tool["function"]))
    return rules


def _call(tool_format: ToolFormat, place: int, function: Mapping[str, Any]) -> Iterator[Any]:
    name = json.dumps(function["name"], ensure_ascii=False)
    head = literal(f'{{"name": {name}, "{tool_format.arguments}": ', {})
    schema = {"type": "object", **(function.get("parameters") or {})}
    yield f"call_{place}", f'{head} arguments_{place} "}}"'
    yield f"arguments_{place}", f"%json {_schema_text(schema, ONE_LINE)}"


def _schema_text(schema: Mapping[str, Any], whitespace: str) -> str:
    given = schema.get("x-guidance", {})
    if not isinstance(given, Mapping):
        raise GrammarError(f"x-guidance is {given!r:.80}", hint="Give an object, or leave it out.")
    options = {"whitespace_pattern": whitespace, **given}
    return json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)
