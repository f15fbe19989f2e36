"""Keywords that are not supported are found where the library would come to them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from bench.schemas import faulty
from ingot.errors import GrammarError
from ingot.runtime.structured import compiler as module
from ingot.runtime.structured.compiler import GrammarCompiler
from ingot.runtime.structured.outputs import StructuredOutputsParams
from ingot.runtime.structured.unsupported import check_keywords
from tests.support.fake_engine import bundled_tokenizer

NOT: dict[str, Any] = {"not": {}}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"if": {}, "then": {}}, "#"),
        ({"anyOf": [{}, {"allOf": [NOT]}]}, "#/anyOf/1/allOf/0"),
        ({"properties": {"a/~": {"contains": {}}}}, "#/properties/a~1~0"),
        ({"type": ["array", "null"], "items": NOT}, "#/items"),
        ({"additionalProperties": {"$ref": "#/$defs/x"}, "$defs": {"x": NOT}}, "#/$defs/x"),
        ({"prefixItems": [{"$ref": "#"}, NOT]}, "#/prefixItems/1"),
    ],
)
def test_what_the_library_would_refuse_is_found(schema: Any, place: str) -> None:
    with pytest.raises(GrammarError, match=f"Unimplemented keys: .*, at {re.escape(place)}\n"):
        check_keywords(schema, json.dumps(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"x": NOT}},
        {"type": "string", "properties": {"a": NOT}, "items": NOT},
        {"type": "object", "prefixItems": [NOT]},
        {"properties": {"not": {}, "if": {"const": {"not": 1}}}, "title": "then"},
        {"enum": [NOT], "default": NOT, "x-more": NOT},
        {"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}, "not": {}}},
        {"type": "nothing", "items": {}},
    ],
)
def test_what_the_library_does_not_read_is_left_to_it(schema: Any) -> None:
    check_keywords(schema, json.dumps(schema))


def test_schemas_that_are_read_otherwise_are_left_to_the_library() -> None:
    for more in ({"$schema": "http://json-schema.org/draft-07/schema#"}, {"$id": "x:y"}):
        check_keywords({**NOT, **more}, json.dumps({**NOT, **more}))


def test_a_large_schema_with_a_fault_never_comes_to_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grammars = GrammarCompiler(bundled_tokenizer, 2048, [0])
    calls: list[object] = []
    for each in ("compiled", "place_of"):
        monkeypatch.setattr(module, each, lambda *given: calls.append(given))
    with pytest.raises(GrammarError, match=r"\[\"not\"\], at #/prefixItems/1"):
        grammars.compile(StructuredOutputsParams(json=faulty(4000)))
    assert calls == []
