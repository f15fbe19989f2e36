"""The tools of a request, and what it says of calling them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ingot.errors import RequestError

MAX_TOOLS = 128
CHOICES = ("auto", "none", "required")


def forced(tool_choice: Any) -> bool:
    """Returns whether the answer must be a call."""
    return tool_choice == "required" or isinstance(tool_choice, Mapping)


def tool_names(tools: Sequence[Any] | None) -> frozenset[str]:
    """The names of tools that were checked."""
    return frozenset(tool["function"]["name"] for tool in tools or ())


def tool_schemas(tools: Sequence[Any] | None) -> dict[str, Mapping[str, Any]]:
    """The schema of the arguments of each tool that was checked."""
    functions = [tool["function"] for tool in tools or ()]
    return {each["name"]: each.get("parameters") or {} for each in functions}


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
        chosen_tools(tools, tool_choice)
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


def chosen_tools(tools: Sequence[Any], tool_choice: Any) -> list[Any]:
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
