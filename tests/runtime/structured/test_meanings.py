"""Keywords mean what the specification says, where llguidance takes them differently."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.errors import GrammarError
from ingot.runtime.structured.compiler import GrammarCompiler
from ingot.runtime.structured.meanings import (
    MAX_OPTIONAL,
    MAX_PATTERNS,
    MAX_PROPERTIES,
    MAX_STEPS,
    as_meant,
)
from ingot.runtime.structured.outputs import StructuredOutputsParams
from tests.support.fake_engine import bundled_tokenizer
from tools.schema_suite import Judge

OLD = {"$schema": "http://json-schema.org/draft-07/schema#"}


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge()


@pytest.fixture(scope="module")
def grammars() -> GrammarCompiler:
    return GrammarCompiler(bundled_tokenizer, 2048, [0])


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        (
            {"format": "date"},
            ["2024-02-29", "2000-02-29", "1999-12-31", 3],
            ["2023-02-29", "1900-02-29", "2024-04-31", "0000-01-01", "2024-2-01", "2024-13-01"],
        ),
        (
            {"type": "string", "format": "time"},
            ["08:30:06Z", "23:59:59.123456+01:00"],
            ["23:59:60Z", "22:59:60Z", "24:00:00Z", "08:30:06", "08:30:06+24:00"],
        ),
        (
            {"format": "date-time"},
            ["2024-02-29T08:30:06Z", "1963-06-19t08:30:06.28z"],
            ["2023-02-29T08:30:06Z", "1998-12-31T22:59:60Z", "1963-06-19 08:30:06Z"],
        ),
        (
            {"format": "date", "pattern": "^20", "allOf": [{"pattern": "-01$"}]},
            ["2024-02-01"],
            ["2023-02-29", "1999-01-01", "2024-02-02"],
        ),
        ({"pattern": r"^\S$"}, ["a", "\x85"], ["\ufeff", "\u3000", " "]),
        ({"pattern": r"^[^\S]\\s$"}, ["\ufeff\\s"], ["\x85\\s", "a\\s", "\ufeff "]),
        ({"patternProperties": {r"^\s$": False}}, [{"a": 1}], [{"\ufeff": 1}]),
        ({"maxLength": 2.0, "minLength": 1.0}, ["ab"], ["", "abc"]),
        ({"uniqueItems": False, "maxItems": 2}, [[1, 1]], [[1, 1, 1]]),
        ({"properties": {"const": {"format": "date"}}}, [{"const": 1}], [{"const": "2023-02-29"}]),
        ({"$ref": "#/odd", "odd": {"format": "date"}}, [1], ["2023-02-29"]),
    ],
)
def test_values_are_judged_as_specified(
    judge: Judge, grammars: GrammarCompiler, schema: Any, taken: list[Any], refused: list[Any]
) -> None:
    grammar = grammars.compile(StructuredOutputsParams(json=schema))
    assert [each for each in taken if not judge.takes(grammar, each)] == []
    assert [each for each in refused if judge.takes(grammar, each)] == []


def test_values_that_look_like_keywords_stay() -> None:
    schema = {"enum": [{"format": "date", "uniqueItems": False, "pattern": r"\s"}]}
    assert as_meant({**schema, "default": {"maxLength": 2.0}}) == {
        **schema,
        "default": {"maxLength": 2.0},
    }


def test_names_of_properties_are_no_keywords() -> None:
    named = {"properties": {name: {"type": "null"} for name in ("format", "pattern", "maxLength")}}
    assert as_meant(named) == named
    assert as_meant({"properties": {"uniqueItems": False}}) == {
        "properties": {"uniqueItems": False}
    }


def test_the_given_schema_is_not_changed() -> None:
    schema = {"properties": {"a": {"format": "date"}}}
    as_meant(schema)
    assert schema == {"properties": {"a": {"format": "date"}}}


def test_content_is_an_annotation_unless_the_draft_is_old() -> None:
    schema = {"properties": {"a": {"contentEncoding": "base64"}}}
    assert as_meant(schema) == schema
    with pytest.raises(GrammarError, match="contentEncoding of this draft"):
        as_meant({**OLD, **schema})
    named = {**OLD, "properties": {"contentEncoding": {"type": "string"}}}
    assert as_meant(named) == named


def of_names(count: int, kind: str = "properties", needed: int = 0) -> dict[str, Any]:
    names = {f"p{number}": {"type": "null"} for number in range(count)}
    return {kind: names, "required": list(names)[:needed]}


@pytest.mark.parametrize(
    ("most", "beyond", "found"),
    [
        (of_names(MAX_OPTIONAL), of_names(MAX_OPTIONAL + 1), "of an object, 3751"),
        (
            of_names(MAX_PROPERTIES, needed=MAX_PROPERTIES - 9),
            of_names(MAX_PROPERTIES + 1, needed=MAX_PROPERTIES + 1),
            "of an object, 7501",
        ),
        (
            of_names(MAX_PATTERNS, "patternProperties"),
            {"allOf": [of_names(51, "patternProperties"), of_names(50, "patternProperties")]},
            "too many patternProperties",
        ),
    ],
)
def test_what_would_take_long_is_refused_at_once(most: Any, beyond: Any, found: str) -> None:
    assert as_meant(most) == most
    with pytest.raises(GrammarError, match=found):
        as_meant(beyond)


@pytest.mark.thorough
def test_no_larger_object_would_be_held_to(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound refuses nothing that the library would not refuse, after a long time."""
    for name in ("MAX_OPTIONAL", "MAX_PROPERTIES"):
        monkeypatch.setattr(f"ingot.runtime.structured.meanings.{name}", 10**6)
    for schema in (of_names(MAX_OPTIONAL + 1), of_names(7501, needed=7501)):
        group = {"schema": schema, "description": "", "tests": []}
        assert "too big" in judge.group("draft2020-12", "one", group).refused


@pytest.mark.parametrize(
    "options",
    [
        {"lenient": True},
        {"coerce_one_of": True},
        {"item_separator": ";"},
        {"whitespace_flexible": True},
        {},
        [],
    ],
)
def test_options_of_the_library_are_refused(grammars: GrammarCompiler, options: Any) -> None:
    """Some would let values through that are not valid."""
    asked = StructuredOutputsParams(json={"type": "null", "x-guidance": options})
    with pytest.raises(GrammarError, match=r'\["x-guidance"\], at #'):
        grammars.compile(asked)


def test_a_property_may_have_the_name_of_the_options() -> None:
    assert as_meant({"properties": {"x-guidance": {"type": "null"}}})


@pytest.mark.parametrize(
    ("multiples", "fits"),
    [
        ([MAX_STEPS - 1], True),
        ([MAX_STEPS + 1], False),
        ([1000 * (MAX_STEPS + 1)], False),
        ([10**12, 7], True),
        ([0.01, 2.5, 1e-9], True),
        ([MAX_STEPS - 9] * 5, True),
        ([MAX_STEPS - 9, 9], True),
        ([MAX_STEPS - 9, 11], False),
    ],
)
def test_multiples_are_bounded_together(multiples: list[float], fits: bool) -> None:
    """The library makes a state for each remainder, in a time that it does not bound."""
    schema = {"prefixItems": [{"type": "integer", "multipleOf": each} for each in multiples]}
    if fits:
        assert as_meant(schema) == schema
    else:
        with pytest.raises(GrammarError, match="multipleOf is too large"):
            as_meant(schema)
