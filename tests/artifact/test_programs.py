"""The interface of a step is written once: the C struct and the page say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ingot.artifact.programs import STEP
from ingot.artifact.spec import SYMBOLS
from ingot.artifact.traits import TRAITS, Role
from tools import step_page

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "ingot" / "targets" / "cpu" / "kernels" / "abi.h"


def test_sizes_of_the_struct_are_the_symbols():
    (line,) = re.findall(r"struct ingot_step \{\s*std::int32_t ([^;]*);", HEADER.read_text())
    names = [name.strip() for name in line.split(",")]
    symbols = [symbol.name for key, symbol in SYMBOLS.items() if key != "P"]
    assert names == [*symbols, "page_table_stride"]


def test_the_page_lists_the_inputs():
    page = step_page.PAGE.read_text()
    assert step_page.with_tables(page) == page, "run `make docs`"
    for array in STEP.inputs:
        assert f"| `{array.name}` | {array.dtype} |" in page


def test_a_page_without_its_place_for_the_tables_is_refused():
    with pytest.raises(ValueError, match="no place"):
        step_page.with_tables("# The artifact\n")


def test_inputs_say_what_they_mean_in_symbols_that_exist():
    names = [array.name for array in STEP.inputs]
    assert len(set(names)) == len(names)
    for array in STEP.inputs:
        assert array.meaning
        symbols = (dim for dim in array.shape if isinstance(dim, str))
        assert set(symbols) <= SYMBOLS.keys()


def test_arguments_of_ops_that_are_inputs_of_a_step_bear_their_names():
    """A rewriting hands inputs to ops by name."""
    tables = TRAITS["paged_attention"].arguments(Role.SEQUENCE)
    names = {array.name for array in STEP.inputs}
    assert set(tables) - names == set(TRAITS["kv_write"].mutates)
    assert {"slots"} <= names & set(TRAITS["kv_write"].arguments(Role.OWN))
