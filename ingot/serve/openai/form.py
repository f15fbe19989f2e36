"""The form that a request asks its answers to have, in one of several ways to say it."""

from __future__ import annotations

from typing import Any

from ingot.errors import GrammarError, RequestError
from ingot.runtime.answers import Style, check_tools, structured_outputs
from ingot.serve.openai.fields import FieldError
from ingot.serve.openai.requests import ChatRequest, GenerateRequest


def form_of(request: GenerateRequest, style: Style, prompt: str) -> dict[str, Any]:
    """The field of `SamplingParams` that says it, or no field. Raises FieldError."""
    given = request.structured_outputs
    tools: dict[str, Any] = {}
    if isinstance(request, ChatRequest):
        tools = {
            "tools": request.tools or None,
            "tool_choice": request.tool_choice,
            "parallel_tool_calls": request.parallel_tool_calls,
        }
    try:
        said = structured_outputs(style, prompt, response_format=request.response_format, **tools)
    except RequestError as error:
        raise form_error(error, request) from error
    if said is not None and given is not None:
        raise FieldError(
            "structured_outputs",
            "structured_outputs is given beside response_format or tools that ask for a form",
            hint="Give one of them.",
        )
    form = given if said is None else said
    return {} if form is None else {"structured_outputs": form}


def check_tools_of(request: ChatRequest) -> None:
    """Raises FieldError for tools that are not well formed."""
    try:
        check_tools(request.tools or None, request.tool_choice)
    except RequestError as error:
        raise form_error(error, request) from error


def form_error(error: RequestError, request: GenerateRequest) -> FieldError:
    """The error with the field that the request said its form by."""
    first = error.found.partition(" ")[0]
    if not first.startswith(("tools", "tool_choice", "response_format")):
        said = request.structured_outputs is not None
        first = "structured_outputs" if said else "response_format"
    code = "invalid_grammar" if isinstance(error, GrammarError) else "invalid_value"
    return FieldError(first, error.found, hint=error.hint, code=code)
