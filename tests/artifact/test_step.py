"""The interface of a step is written once: the C struct and the page say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ingot.artifact.step import SYMBOLS, TEXT_INPUTS
from ingot.artifact.traits import TRAITS, Role
from tools import step_page

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "ingot" / "targets" / "cpu" / "kernels" / "abi.h"


def pointers(header: str) -> list[tuple[str, str]]:
    """(type, name) of the arrays that the struct of a step reads, in order."""
    (body,) = re.findall(r"struct ingot_step \{(.*?)\};", header, re.S)
    found = []
    for declaration in re.sub(r"//[^\n]*", "", body).split(";"):
        match = re.match(r"\s*const\s+([\w:]+)\s+(\*.*)", declaration, re.S)
        if match:
            found += [(match[1], name.strip(" *\n")) for name in match[2].split(",")]
    return found


def test_the_struct_of_a_step_lists_the_inputs_in_order():
    c_types = {"int32": "std::int32_t"}
    expected = [(c_types[array.dtype], array.name) for array in TEXT_INPUTS]
    assert pointers(HEADER.read_text()) == expected


def test_sizes_of_the_struct_are_the_symbols():
    (line,) = re.findall(r"struct ingot_step \{\s*std::int32_t ([^;]*);", HEADER.read_text())
    names = [name.strip() for name in line.split(",")]
    symbols = [symbol.name for key, symbol in SYMBOLS.items() if key != "P"]
    assert names == [*symbols, "page_table_stride"]


@pytest.mark.parametrize(
    "change",
    [
        ("*slots, *spans", "*spans, *slots"),
        ("*positions, ", ""),
        ("const std::int32_t *tokens", "const std::int64_t *tokens"),
        ("*logit_rows;", "*logit_rows, *state_ids;"),
    ],
)
def test_another_struct_is_noticed(change):
    """The control."""
    header = HEADER.read_text()
    assert change[0] in header
    assert pointers(header.replace(*change)) != pointers(header)


def test_the_page_lists_the_inputs():
    page = step_page.PAGE.read_text()
    assert step_page.with_tables(page) == page, "run `make docs`"
    for array in TEXT_INPUTS:
        assert f"| `{array.name}` | {array.dtype} |" in page


def test_a_page_without_its_place_for_the_tables_is_refused():
    with pytest.raises(ValueError, match="no place"):
        step_page.with_tables("# The artifact\n")


def test_inputs_say_what_they_mean_in_symbols_that_exist():
    names = [array.name for array in TEXT_INPUTS]
    assert len(set(names)) == len(names)
    for array in TEXT_INPUTS:
        assert array.meaning
        symbols = (dim for dim in array.shape if isinstance(dim, str))
        assert set(symbols) <= SYMBOLS.keys()


def test_arguments_of_ops_that_are_inputs_of_a_step_bear_their_names():
    """A rewriting hands inputs to ops by name."""
    tables = TRAITS["paged_attention"].arguments(Role.SEQUENCE)
    names = {array.name for array in TEXT_INPUTS}
    assert set(tables) - names == set(TRAITS["kv_write"].mutates)
    assert {"slots"} <= names & set(TRAITS["kv_write"].arguments(Role.OWN))
