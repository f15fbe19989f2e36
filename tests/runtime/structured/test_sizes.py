"""The least size of a grammar is no more than its size, and what is too large is refused by it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from llguidance import LLMatcher, LLParserLimits

from bench.schemas import KINDS
from ingot.errors import GrammarError
from ingot.runtime.structured import compiler as module
from ingot.runtime.structured.compiler import GrammarCompiler
from ingot.runtime.structured.outputs import StructuredOutputsParams
from ingot.runtime.structured.sizes import MAX_SYMBOLS, size_of
from tests.runtime.structured.schemas import SCHEMAS
from tests.runtime.structured.wide_schemas import WIDE
from tests.support.fake_engine import bundled_tokenizer

FUEL = 1 << 40


def symbols_of(schema: Any) -> int | None:
    """The symbols that the library makes; None if it refuses the schema."""
    text = LLMatcher.grammar_from_json_schema(json.dumps(schema), {"whitespace_pattern": " ?"})

    def said(most: int) -> str:
        limits = LLParserLimits(max_grammar_size=most, initial_lexer_fuel=FUEL)
        return LLMatcher.validate_grammar(text, limits=limits)

    least, most = 0, 1 << 17
    if said(most):
        return None
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if "symbols" in said(middle) else (least, middle)
    return most


@pytest.mark.parametrize("name", KINDS)
def test_no_kind_of_the_benchmark_is_larger_than_the_library_makes_it(name: str) -> None:
    schema = KINDS[name](40)
    if (made := symbols_of(schema)) is not None:
        assert size_of(schema).symbols <= made


CLOSE = ("enum of objects", "wide", "in objects", "chain", "in rings", "anyOf", "oneOf")


@pytest.mark.parametrize("name", [kind for kind in KINDS if any(each in kind for each in CLOSE)])
def test_what_grows_is_counted_closely(name: str) -> None:
    """What one more adds, of which the rest is at most a fourth, such as names."""
    few, many = KINDS[name](50), KINDS[name](100)
    made = (symbols_of(many) or 0) - (symbols_of(few) or 0)
    assert 0.7 * made <= size_of(many).symbols - size_of(few).symbols <= made


def test_no_schema_of_the_tests_is_larger_than_the_library_makes_it() -> None:
    for schema in (*SCHEMAS, *WIDE):
        if (made := symbols_of(schema)) is not None:
            assert size_of(schema).symbols <= made, schema


class _Random:
    """Draws schemas, of which many parts have no values."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def root(self) -> dict[str, Any]:
        return {**self._part(3, dict), "$defs": {name: self._part(2) for name in "abc"}}

    def _part(self, depth: int, kind: type = object) -> Any:
        ways: list[Callable[[int], Any]] = [
            self._object, self._object, self._choice, self._array, self._typed, self._values,
            self._leaf, self._leaf, self._reference, self._mixed,
        ]  # fmt: skip
        if kind is object and self._rng.random() < 0.1:
            return self._rng.choice([True, False, {}, {"title": "any"}])
        return self._rng.choice(ways if depth else [self._leaf, self._values])(depth - 1)

    def _some(self, depth: int, most: int = 4) -> list[Any]:
        return [self._part(depth) for _ in range(self._rng.randrange(most))]

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._rng.sample("pqrstuv", self._rng.randrange(5))
        part: dict[str, Any] = {"properties": {name: self._part(depth) for name in names}}
        if self._rng.random() < 0.7:
            part["type"] = self._rng.choice(["object", ["object", "null"], ["array", "object"]])
        if self._rng.random() < 0.7:
            part["required"] = [name for name in "pqrstuv" if self._rng.random() < 0.4]
        if self._rng.random() < 0.6:
            part["additionalProperties"] = self._rng.choice([False, True, self._part(depth)])
        return part

    def _array(self, depth: int) -> dict[str, Any]:
        part: dict[str, Any] = {"type": "array"}
        if self._rng.random() < 0.5:
            part["prefixItems"] = [self._part(depth), *self._some(depth)]
        if self._rng.random() < 0.6:
            part["items"] = self._part(depth)
        if self._rng.random() < 0.3:
            part["minItems"] = self._rng.randrange(4)
        if self._rng.random() < 0.3:
            part["maxItems"] = self._rng.randrange(4)
        return part

    def _choice(self, depth: int) -> dict[str, Any]:
        return {self._rng.choice(["anyOf", "anyOf", "oneOf"]): self._some(depth, 5)}

    def _typed(self, depth: int) -> dict[str, Any]:
        types = ["string", "integer", "number", "boolean", "null", "object", "array"]
        return {"type": self._rng.sample(types, self._rng.randrange(1, 5)), "maximum": 5}

    def _values(self, depth: int) -> dict[str, Any]:
        values = [1, "a", None, {"a": 1, "b": [2]}, [], {}, [1, {"c": "d"}], 1.5]
        return {"enum": self._rng.sample(values, self._rng.randrange(1, 5))}

    def _leaf(self, depth: int) -> dict[str, Any]:
        low, high = self._rng.randrange(9), self._rng.randrange(9)
        return self._rng.choice(
            [
                {"type": "integer", "minimum": low, "maximum": high},
                {"type": "integer", "minimum": low + 0.5, "maximum": low + 0.6},
                {"type": "number", "minimum": low, "maximum": high + 0.5},
                {"type": "string", "minLength": low, "maxLength": high},
                {"type": "string", "pattern": "^[^\\s\\S]$"},
                {"type": "boolean"},
                {"const": {"x": 1}},
            ]
        )

    def _reference(self, depth: int) -> dict[str, Any]:
        return {"$ref": f"#/$defs/{self._rng.choice('abc')}"}

    def _mixed(self, depth: int) -> dict[str, Any]:
        """Keywords beside one another, which take values from one another."""
        return {**self._leaf(depth), **self._part(depth, dict), **self._choice(depth)}


def test_random_schemas_are_no_larger_than_the_library_makes_them() -> None:
    taken = 0
    for seed in range(100):
        schema = _Random(seed).root()
        if (made := symbols_of(schema)) is not None:
            taken += 1
            assert size_of(schema).symbols <= made, schema
    assert taken > 25


LARGE = {
    "an enum of objects": 6500,
    "a wide object": 5000,
    "objects in objects": 9000,
    "a chain of references": 2500,
    "references in rings": 2000,
    "anyOf": 2000,
    "oneOf": 2000,
    "ranges of numbers": 2500,
}


@pytest.mark.parametrize("name", LARGE)
def test_what_is_too_large_never_comes_to_the_library(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    grammars = GrammarCompiler(bundled_tokenizer, 2048, [0])
    calls: list[object] = []
    for each in ("compiled", "place_of"):
        monkeypatch.setattr(module, each, lambda *given: calls.append(given))
    with pytest.raises(GrammarError, match=r"too (big|many ranges)"):
        grammars.compile(StructuredOutputsParams(json=KINDS[name](LARGE[name])))
    assert calls == []


def test_what_is_nearly_too_large_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 60)  # it is about the size, not the time
    schema = KINDS["an enum of objects"](4000)
    assert 0.6 * MAX_SYMBOLS < size_of(schema).symbols < MAX_SYMBOLS
    grammars = GrammarCompiler(bundled_tokenizer, 2048, [0])
    assert grammars.compile(StructuredOutputsParams(json=schema))


def test_definitions_that_nothing_refers_to_do_not_count() -> None:
    assert size_of({"$defs": KINDS["a wide object"](100)["properties"], "type": "null"}) == (1, 0)


def test_equal_ranges_are_the_work_of_one() -> None:
    part = {"type": "integer", "minimum": 10, "maximum": 200}
    assert size_of({"prefixItems": [part] * 7}).ranges == 9
    assert size_of({"prefixItems": [part, {**part, "maximum": 300}]}).ranges == 18
