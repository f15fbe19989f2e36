"""The description of the API: valid, complete, and true of what is answered."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ingot.serve.http.app import build_app
from ingot.serve.http.openapi import ENDPOINTS, openapi
from ingot.serve.openai.requests import ChatRequest, CompletionRequest
from tests.support.asgi import called
from tests.support.fake_engine import FakeEngine, FakeModels, says

PAGE = Path(__file__).parents[3] / "docs" / "serving.md"
# Answered by the server around the application.
AROUND = {"/metrics", "/health/details"}


def validator(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    """Checks values against a schema of the description, references included."""
    return jsonschema.Draft202012Validator({**schema, "components": openapi()["components"]})


def test_all_references_lead_somewhere() -> None:
    found = openapi()
    names = set(re.findall(r"'#/components/schemas/(\w+)'", str(found)))
    assert names <= set(found["components"]["schemas"]) and names
    for schema in found["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_it_lists_the_routes_that_there_are() -> None:
    app = build_app(FakeModels())
    there = {
        (method, route.path.replace("{name:path}", "{name}"))
        for route in app.routes
        for method in route.methods - {"HEAD"}
    }
    listed = {(each.method, each.path) for each in ENDPOINTS if each.path not in AROUND}
    assert listed == there


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_answers_are_as_described(path: str) -> None:
    asked: dict[str, Any] = {"prompt": "x"}
    if "chat" in path:
        asked = {"messages": [{"role": "user", "content": "x"}]}
    app = build_app(FakeModels(bard=FakeEngine(says("a"))))
    described = openapi()["paths"][path]["post"]
    validator(described["requestBody"]["content"]["application/json"]["schema"]).validate(asked)
    answer = asyncio.run(called(app, "POST", path, asked)).json()
    of_answer = described["responses"]["200"]["content"]["application/json"]["schema"]
    validator(of_answer).validate(answer)
    error = asyncio.run(called(app, "POST", path, {**asked, "n": 0})).json()
    of_error = described["responses"]["400"]["content"]["application/json"]["schema"]
    validator(of_error).validate(error)
    with pytest.raises(jsonschema.ValidationError):
        validator(of_answer).validate(error)
    with pytest.raises(jsonschema.ValidationError):
        validator(of_error).validate(answer)


@pytest.mark.parametrize("kind", [CompletionRequest, ChatRequest])
def test_the_page_names_every_field(kind: Any) -> None:
    text = PAGE.read_text()
    assert [name for name in kind.__struct_fields__ if f"`{name}`" not in text] == []


def test_the_page_names_every_route() -> None:
    text = PAGE.read_text()
    missing = [each.path for each in ENDPOINTS if each.path.replace("{name}", "NAME") not in text]
    assert missing == []
