"""Alternatives that are references: written out, so that their differences are seen."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import validate

from ingot.errors import GrammarError
from ingot.runtime.structured.compiler import GrammarCompiler
from ingot.runtime.structured.outputs import StructuredOutputsParams
from ingot.runtime.structured.references import MAX_DEPTH, MAX_WRITTEN, written_out
from tests.runtime.structured.schemas import closed
from tests.support.fake_engine import bundled_tokenizer

CAT, DOG = closed(kind={"const": "cat"}, lives={"type": "integer"}), closed(kind={"const": "dog"})
NAMED = {"Cat": CAT, "Dog": DOG, "Pet": {"$ref": "#/$defs/Dog"}}


def union(*names: str, **beside: Any) -> dict[str, Any]:
    found = {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in names], **beside}
    return {"$defs": NAMED, **closed(pet=found)}


def takes(schema: dict[str, Any], value: Any) -> bool:
    """Whether a text of the value has the form that the schema asks for."""
    grammars = GrammarCompiler(bundled_tokenizer, 2048, [0])
    matcher = grammars.compile(StructuredOutputsParams(json=schema)).matcher()
    text = json.dumps(value, separators=(",", ":"))
    tokens = bundled_tokenizer().encode(text, add_special_tokens=False)
    return matcher.validate_tokens(tokens) == len(tokens)


@pytest.mark.parametrize(
    "schema",
    [
        union("Cat", "Dog"),
        union("Cat", "Pet"),  # by two references
        union("Cat", "Dog", discriminator={"propertyName": "kind"}, title="Pet"),
    ],
)
def test_a_union_of_named_objects_is_held_to(schema: dict[str, Any]) -> None:
    for pet in ({"kind": "cat", "lives": 9}, {"kind": "dog"}):
        validate({"pet": pet}, schema)
        assert takes(schema, {"pet": pet})
    assert not takes(schema, {"pet": {"kind": "dog", "lives": 9}})
    assert not takes(schema, {"pet": {"kind": "cow"}})


def test_names_of_pointers_are_escaped() -> None:
    schema = {"$defs": {"a/b~c": CAT}, "oneOf": [{"$ref": "#/$defs/a~1b~0c"}, {"type": "null"}]}
    assert written_out(schema)["oneOf"] == [CAT, {"type": "null"}]
    by_place = {"prefixItems": [DOG], "oneOf": [{"$ref": "#/prefixItems/0"}]}
    assert written_out(by_place)["oneOf"] == [DOG]


@pytest.mark.parametrize(
    "alternative",
    [
        {"$ref": "#/$defs/Cow"},
        {"$ref": "https://example.com/cat"},
        {"$ref": "#/$defs/Cat", "required": ["lives"]},  # says more than the reference
        {"$ref": 3},
    ],
)
def test_what_leads_nowhere_or_says_more_stays(alternative: dict[str, Any]) -> None:
    schema = {"$defs": NAMED, "oneOf": [alternative]}
    assert written_out(schema) == schema


def test_values_are_no_schemas() -> None:
    schema = {"$defs": NAMED, "const": {"oneOf": [{"$ref": "#/$defs/Cat"}]}}
    assert written_out(schema) == schema


def test_a_tree_refers_to_itself() -> None:
    leaf, ref = closed(kind={"const": "leaf"}), {"$ref": "#/$defs/Tree"}
    fork = closed(kind={"const": "fork"}, left=ref, right=ref)
    tree = {"oneOf": [{"$ref": "#/$defs/Leaf"}, {"$ref": "#/$defs/Fork"}]}
    schema = {"$defs": {"Leaf": leaf, "Fork": fork, "Tree": tree}, **ref}
    one = {"kind": "leaf"}
    two = {"kind": "fork", "left": one, "right": one}
    assert takes(schema, one) and takes(schema, {**two, "left": two})
    assert not takes(schema, {"kind": "fork", "left": one})


def test_what_leads_back_to_itself_stays() -> None:
    inner = {"oneOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}
    schema = {"$defs": {"A": closed(x=inner)}, **inner}
    found = written_out(schema)
    assert found["oneOf"][0]["properties"]["x"] == inner
    loop = {"$defs": {"A": {"$ref": "#/$defs/A"}}, "oneOf": [{"$ref": "#/$defs/A"}]}
    assert written_out(loop) == loop


def test_a_schema_that_would_explode_is_refused_in_time() -> None:
    levels = MAX_DEPTH + 20
    defs: dict[str, Any] = {
        f"L{n}": {"oneOf": [{"$ref": f"#/$defs/L{n + 1}"}] * 4} for n in range(levels)
    }
    defs[f"L{levels}"] = {"type": "null"}
    schema = {"$defs": defs, "oneOf": [{"$ref": "#/$defs/L0"}]}
    text = json.dumps(written_out(schema))
    assert text.count("oneOf") <= MAX_WRITTEN + 2 * levels
    with pytest.raises(GrammarError):
        takes(schema, None)


def test_a_large_part_is_not_written_out_again_and_again() -> None:
    large = {"enum": ["cow"], **closed(**{f"p{n}": {"type": "null"} for n in range(5000)})}
    schema = {"$defs": {"Large": large}, "oneOf": [{"$ref": "#/$defs/Large"}] * 1000}
    found = written_out(schema)["oneOf"]
    assert 1 < sum("$ref" not in each for each in found) < 10
