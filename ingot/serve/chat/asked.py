"""What a request asks of the form of an answer, as `SamplingParams.structured_outputs`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ingot.errors import RequestError
from ingot.runtime.structured.spelling import WHITESPACE

if TYPE_CHECKING:
    from ingot.serve.chat.formats import ToolFormat
    from ingot.serve.chat.style import Style

MAX_TOOLS = 128
MAX_CALLS = 16  # that are asked for at once
CHOICES = ("auto", "none", "required")


def structured_outputs(
    style: Style,
    prompt: str,
    *,
    response_format: Any = None,
    tools: Any = None,
    tool_choice: Any = None,
    parallel_tool_calls: bool | None = True,
) -> dict[str, Any] | None:
    """What holds an answer to `response_format`, and to calls where `tool_choice` asks for them.

    Where the model may reason first, it still may. Raises RequestError for a field that is not
    well formed.
    """
    check_tools(tools, tool_choice)
    schema = _schema(response_format)
    ways: dict[str, str] = {}
    if tools and tool_choice != "none" and (forced(tool_choice) or (schema and style.format)):
        chosen = _chosen(tools, tool_choice)
        most = 1 if parallel_tool_calls is False else MAX_CALLS
        ways |= _calls(style.format_of_calls, chosen, most)
    if schema is not None and not forced(tool_choice):
        if not ways and not style.thinks:
            return {"json": schema}
        ways["answer"] = f"%json {_schema_text(schema)}"
    if not ways:
        return None
    first = [name for name in ("calls", "answer") if name in ways]
    lines = [_start(style, prompt, first), *(f"{name}: {body}" for name, body in ways.items())]
    return {"grammar": "\n".join(lines)}


def forced(tool_choice: Any) -> bool:
    """Whether the answer must be a call."""
    return tool_choice == "required" or isinstance(tool_choice, Mapping)


def tool_names(tools: Sequence[Any] | None) -> frozenset[str]:
    """The names of tools that were checked."""
    return frozenset(tool["function"]["name"] for tool in tools or ())


def check_tools(tools: Any, tool_choice: Any) -> None:
    """Raises RequestError for tools that are not well formed, and for a choice there is not."""
    if tools is not None:
        if not isinstance(tools, (list, tuple)) or len(tools) > MAX_TOOLS:
            raise RequestError(f"tools is {tools!r:.80}", hint=f"Give at most {MAX_TOOLS} tools.")
        for place, tool in enumerate(tools):
            _check_tool(f"tools[{place}]", tool)
        if len(tool_names(tools)) < len(tools):
            raise RequestError("tools has a name twice", hint="Give each tool a name of its own.")
    if tool_choice is None or tool_choice in ("auto", "none"):
        return
    if not tools:
        raise RequestError("tool_choice is given without tools", hint="Give tools as well.")
    if isinstance(tool_choice, Mapping):
        _chosen(tools, tool_choice)
    elif tool_choice != "required":
        raise RequestError(
            f"tool_choice is {tool_choice!r:.80}",
            hint=f"Supported: {', '.join(CHOICES)}, or the name of a tool as "
            '{"type": "function", "function": {"name": "..."}}.',
        )


def _check_tool(field: str, tool: Any) -> None:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or tool.get("type", "function") != "function":
        raise RequestError(
            f"{field} is {tool!r:.80}",
            hint='Give {"type": "function", "function": {"name": "...", "parameters": {...}}}.',
        )
    name = function.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= 64:
        raise RequestError(f"{field}.function.name is {name!r:.80}", hint="1 to 64 characters.")
    if not isinstance(function.get("parameters", {}), (Mapping, type(None))):
        raise RequestError(
            f"{field}.function.parameters is {function['parameters']!r:.80}",
            hint="Give a JSON schema: an object.",
        )


def _chosen(tools: Sequence[Any], tool_choice: Any) -> list[Any]:
    """The tools that may be called."""
    if not isinstance(tool_choice, Mapping):
        return list(tools)
    function = tool_choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    chosen = [tool for tool in tools if tool["function"]["name"] == name]
    if not chosen:
        raise RequestError(
            f"tool_choice is {tool_choice!r:.80}", hint="Name one of the tools that are given."
        )
    return chosen


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
    thought = "thought" if style.opened(prompt) else '("<think>" thought)?'
    return "\n".join(
        (
            f"start: {thought} SPACE ({body})",
            "SPACE: /[ \\n]{0,4}/",
            'thought[suffix="</think>"]: /(?s:.*)/',
        )
    )


def _calls(tool_format: ToolFormat, tools: Sequence[Any], most: int) -> dict[str, str]:
    """The rules of one call, or of several."""
    begin, between, end = map(_literal, (tool_format.begin, tool_format.between, tool_format.end))
    more = f" ({between} call){{0,{most - 1}}}" if most > 1 else ""
    names = [f"call_{place}" for place in range(len(tools))]
    rules = {"calls": f"{begin} call{more} {end}".strip(), "call": " | ".join(names)}
    for place, tool in enumerate(tools):
        rules.update(_call(tool_format, place, tool["function"]))
    return rules


def _call(tool_format: ToolFormat, place: int, function: Mapping[str, Any]) -> Iterator[Any]:
    name = json.dumps(function["name"], ensure_ascii=False)
    head = _literal(f'{{"name": {name}, "{tool_format.arguments}": ')
    schema = {"type": "object", **(function.get("parameters") or {})}
    yield f"call_{place}", f'{head} arguments_{place} "}}"'
    yield f"arguments_{place}", f"%json {_schema_text(schema)}"


def _schema_text(schema: Mapping[str, Any]) -> str:
    options = {"whitespace_pattern": WHITESPACE, **schema.get("x-guidance", {})}
    return json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
