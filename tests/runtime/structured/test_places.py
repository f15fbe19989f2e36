"""Refusals of schemas name the place in them, and are cheap."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.errors import GrammarError
from ingot.runtime.structured import places
from ingot.runtime.structured.compiler import GrammarCompiler
from ingot.runtime.structured.outputs import StructuredOutputsParams
from ingot.runtime.structured.places import place_of
from tests.support.fake_engine import bundled_tokenizer

NOT: dict[str, Any] = {"not": {"type": "null"}}
LOOP = {"$ref": "#/$defs/x", "$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}, NOT]}}}
OLD = {"$schema": "http://json-schema.org/draft-07/schema#"}
WIDE = {"properties": {f"p{n}": NOT if n == 77 else {"type": "null"} for n in range(100)}}


@pytest.fixture(scope="module")
def grammars() -> GrammarCompiler:
    return GrammarCompiler(bundled_tokenizer, 2048, [0])


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (NOT, "#"),
        ({"properties": {"a": NOT}}, "#/properties/a"),
        ({"properties": {"a/b~": {"prefixItems": [{}, NOT]}}}, "#/properties/a~1b~0/prefixItems/1"),
        ({"properties": {"not": {"type": "null"}, "b": {"items": NOT}}}, "#/properties/b/items"),
        ({"items": {"$ref": "#/$defs/x"}, "$defs": {"y": NOT, "x": NOT}}, "#/$defs/x"),
        ({"items": {"$ref": "#/odd/0"}, "odd": [NOT]}, "#/odd/0"),
        (LOOP, "#/$defs/x/anyOf/1"),
        (WIDE, "#/properties/p77"),
        ({"properties": {"a": {"pattern": "("}}}, "#/properties/a"),
        ({"items": {"type": "number", "multipleOf": 0.123456789}}, "#/items"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "#"),
        ({"properties": {"a": {"format": "regex"}}}, "#/properties/a"),
        ({"properties": {"a": {"$ref": "https://example.com"}}}, "#/properties/a"),
        ({"allOf": [{"type": "string", "minLength": 3, "maxLength": 2}]}, "#/allOf/0"),
        ({**OLD, "items": [{"contentEncoding": "base64"}]}, "#/items/0"),
    ],
)
def test_a_refusal_names_the_place(grammars: GrammarCompiler, schema: Any, place: str) -> None:
    with pytest.raises(GrammarError) as caught:
        grammars.compile(StructuredOutputsParams(json=schema))
    assert caught.value.found.endswith(f", at {place}"), caught.value.found


def test_a_schema_in_a_grammar_is_named_by_its_rule(grammars: GrammarCompiler) -> None:
    text = 'start: one | two\none: %json {"type": "null"}\ntwo: %json {"items": {"not": {}}}'
    with pytest.raises(GrammarError, match=r"at two#/items\n"):
        grammars.compile(StructuredOutputsParams(grammar=text))


@pytest.mark.parametrize("asked", [{"regex": "("}, {"grammar": "start: %json {"}])
def test_what_is_no_schema_has_no_place(grammars: GrammarCompiler, asked: Any) -> None:
    with pytest.raises(GrammarError) as caught:
        grammars.compile(StructuredOutputsParams(**asked))
    assert ", at " not in caught.value.found


def test_a_search_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []

    def fault(schema: Any) -> str:
        tried.append(schema)
        return "all of it"

    deep: Any = {}
    for _ in range(30):
        deep = {"items": deep}
    asked = StructuredOutputsParams(json=deep)
    assert place_of(asked, fault) == "#" + 30 * "/items"
    monkeypatch.setattr(places, "MAX_TRIES", 10)
    tried.clear()
    assert place_of(asked, fault) == "#" + 10 * "/items"
    assert len(tried) == 11
    monkeypatch.setattr(places, "MAX_CHARS", 0)
    assert place_of(asked, fault) == "#"


def test_halves_are_tried_of_many_parts() -> None:
    asked, tried = StructuredOutputsParams(json=WIDE), 0

    def fault(schema: Any) -> str | None:
        nonlocal tried
        tried += 1
        return "not" if '"not"' in str(schema).replace("'", '"') else None

    assert (place_of(asked, fault) or "").startswith("#/properties/p77")
    assert tried < 20


def test_what_is_too_large_is_not_sought(grammars: GrammarCompiler) -> None:
    parts = [{"properties": {f"k{n}": {}}, "required": [f"k{n}"]} for n in range(2600)]
    with pytest.raises(GrammarError) as caught:
        grammars.compile(StructuredOutputsParams(json={"anyOf": parts}))
    assert "too big" in caught.value.found and ", at " not in caught.value.found
