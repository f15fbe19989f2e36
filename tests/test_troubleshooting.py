"""docs/troubleshooting.md quotes messages that the code still has."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "troubleshooting.md"
ROW = re.compile(r"^\| `(.+?)` \| (.+) \| (.+) \|$", re.M)
ROWS = ROW.findall(PAGE.read_text())
HOLE = "\0"
BEGINS = ":'"  # what can stand after the hole that a message begins with


@cache
def messages() -> frozenset[str]:
    """Every string in the code of the package, with a hole for each value that is put in."""
    files = (ROOT / "ingot").rglob("*.py")
    return frozenset(text for file in files for text in strings(file.read_text()))


def strings(source: str) -> list[str]:
    """The strings of a source, without docstrings. Names of constants are put in."""
    tree = ast.parse(source)
    docs = {
        id(node.value) for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }  # fmt: skip
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(_text(part) for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [] if id(node) in docs else [node.value]
    return found


# Constants in messages, as they are printed.
NAMES = {
    "MANIFEST": "manifest.json",
    "SINGLE": "model.safetensors",
    "INDEX": "model.safetensors.index.json",
    "path.name": "config.json",
    "self.where": "config.json",
    "self.prog": "ingot",
    "LIBRARY": "libcuda.so.1",
}


def _text(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    return NAMES.get(ast.unparse(part.value), HOLE)


def is_said(quote: str) -> bool:
    """Whether some message of the code has this form, where `...` is any text.

    A message may go on where the quote ends, and the first and last hole of it may be anything.
    """
    parts = [part.strip() for part in quote.lstrip(f". {BEGINS}").split("...")]
    form = re.compile(r".*".join(map(re.escape, parts)), re.S)
    return any(form.match(text.lstrip(f"{HOLE} {BEGINS}")) for text in messages())


@pytest.mark.parametrize("quote", [quote for quote, _, _ in ROWS])
def test_a_quoted_message_is_in_the_code(quote: str) -> None:
    assert is_said(quote)


def test_every_row_is_whole() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == len(ROWS) > 40
    assert len({quote for quote, _, _ in ROWS}) == len(ROWS)
    assert [quote for quote, means, do in ROWS if not (means.endswith(".") and do)] == []


@pytest.mark.parametrize(
    "quote", ["no C++ compiler was found", "torch is ... uninstalled", "Every public function"]
)
def test_a_message_that_nothing_says_is_found(quote: str) -> None:
    assert not is_said(quote)


def test_strings_are_read_as_they_are_printed() -> None:
    source = '"""A docstring."""\nraise E(f"{root} has no {MANIFEST}" "!", hint="Do.")\n'
    assert strings(source)[0] == f"{HOLE} has no manifest.json!" and "Do." in strings(source)
    assert "A docstring." not in strings(source)
