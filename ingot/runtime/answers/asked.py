"""Translation of `response_format` and tool choices to `SamplingParams.structured_outputs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ingot.errors import RequestError
from ingot.runtime.answers import written
from ingot.runtime.answers.style import Style
from ingot.runtime.answers.tools import check_tools, chosen_tools, forced
from ingot.runtime.structured.spelling import WHITESPACE, literal

MAX_CALLS = 16  # that are asked for at once


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
        ways |= written.calls(style.format_of_calls, chosen, most, style.tags)
    if schema is not None and not forced(tool_choice):
        if not ways and not style.thinks:
            return {"json": schema}
        ways["answer"] = f"%json {written.schema_text(schema, WHITESPACE)}"
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
    row, shell = style.thought, style.shell
    body = " | ".join(_dressed(style, way) for way in ways)
    if row is None:
        space = ["SPACE: /[ \\n]{0,4}/"] if shell else []
        return "\n".join((f"start: {body}", *space))
    begin = literal(row.begin, style.tags)
    # What follows it is a message of its own, or stands behind white space.
    thought = f"thought {literal(row.turn, style.tags)}" if row.turn else "thought"
    thought = thought if style.opened(prompt) else f"({begin} {thought})?"
    rules = [f"{name}: {rule}" for name, rule in written.text_until("thought", row.end, style.tags)]
    start = f"start: {thought} ({body})" if row.turn else f"start: {thought} SPACE ({body})"
    return "\n".join((start, "SPACE: /[ \\n]{0,4}/", *rules))


def _dressed(style: Style, way: str) -> str:
    """An answer in the tags that the model's family writes around it; a call has its own."""
    if way == "calls":
        return way
    if style.thought and style.thought.lead:
        return f"{literal(style.thought.lead, style.tags)} {way}"
    if style.shell:
        begin, end = (literal(tag, style.tags) for tag in (style.shell.begin, style.shell.end))
        return f"({begin} SPACE {way} SPACE {end} | {way})"
    return way
