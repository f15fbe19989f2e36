"""The official test suite of JSON Schema: what it calls invalid is never written."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tools import schema_page
from tools.schema_suite import Group, Judge, fetch

REASONS = {"order", "number", "format", "beside"}


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    return schema_page.measured()


@pytest.mark.slow
def test_every_schema_is_refused_or_judged_as_the_suite_does(groups: list[Group]) -> None:
    values = [(group, each) for group in groups for each in group.instances]
    wrong = [(group, each) for group, each in values if each.taken and not each.valid]
    assert wrong == []
    unexplained = [
        (group, each)
        for group, each in values
        if each.valid and not each.taken and each.reason not in REASONS
    ]
    assert unexplained == []
    assert sum(each.valid == each.taken for _, each in values) >= 1800


@pytest.mark.slow
def test_every_refusal_names_the_place(groups: list[Group]) -> None:
    refused = [group for group in groups if group.refused and isinstance(group.schema, dict)]
    assert len(refused) > 300
    assert [group.refused for group in refused if ", at #" not in group.refused] == []


@pytest.mark.slow
def test_the_page_is_current(groups: list[Group]) -> None:
    assert schema_page.PAGE.read_text() == schema_page.page(groups), "run `make docs`"


def group(schema: object, *values: tuple[object, bool]) -> Group:
    instances = [{"data": data, "valid": valid} for data, valid in values]
    return Judge().group(
        "draft2020-12", "one", {"schema": schema, "description": "", "tests": instances}
    )


def test_values_are_judged_and_explained() -> None:
    schema = {"properties": {"a": {"const": 1}, "b": {"type": "null"}}, "required": ["a"]}
    found = group(
        schema,
        ({"a": 1, "b": None}, True),
        ({"a": 2}, False),
        ({"a": 1, "b": 3}, True),  # says a suite that is wrong
        ({"b": None, "a": 1}, True),
        ({"a": 1.0}, True),
    )
    assert [each.taken for each in found.instances] == [True, False, False, False, False]
    assert [each.reason for each in found.instances] == ["", "", "", "order", "number"]


def test_the_page_counts() -> None:
    held = group({"const": 1}, (1, True), (2, False), (1.0, True))
    refused = group({"not": {}}, (1, False))
    page = schema_page.page([held, refused])
    assert "1 of 2 schemas are held to. Of their 3 values, 2 are judged" in page
    assert "| one | 1 | 1 | `not` | 1 number |" in page
    with pytest.raises(ValueError, match="no words"):
        list(schema_page.reasons("out of cheese"))


def test_a_suite_that_is_there_is_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    assert fetch(tmp_path) == tmp_path / "tests"
    assert Counter(path.name for path in tmp_path.iterdir()) == {"tests": 1}
