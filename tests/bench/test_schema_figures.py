"""The benchmark of large schemas: what it makes, and what it says of them."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from bench import schemas


@pytest.mark.parametrize("name", schemas.KINDS)
def test_a_kind_is_a_schema_that_grows(name: str) -> None:
    few, many = (schemas.KINDS[name](count) for count in (60, 120))
    Draft202012Validator.check_schema(many)
    assert len(json.dumps(few)) < len(json.dumps(many))


def test_schemas_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "BYTES", 2000)
    for make in schemas.KINDS.values():
        assert 1000 < len(schemas.filled(make)) <= 2000


def test_figures_say_what_is_ready_and_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "BYTES", 2000)
    kinds = {name: schemas.KINDS[name] for name in ("anyOf", "a fault at the end")}
    monkeypatch.setattr(schemas, "KINDS", kinds)
    ready, refused = schemas.figures(2)
    assert ready.limit == 1e3 * schemas.SECONDS and ready.note.endswith("ready")
    assert refused.limit == schemas.REFUSED_MS and "not" in refused.note


def test_nothing_is_kept_from_round_to_round() -> None:
    grammars = schemas.compiler()
    schemas.compiled(grammars, '{"type": "null"}')
    assert len(grammars._kept) == 1
    grammars.forget()
    assert not grammars._kept
