"""Writes the tables of a step's interface into docs/artifact.md; `make docs` runs it."""

from __future__ import annotations

import re
from pathlib import Path

from ingot.artifact.step import SYMBOLS, TEXT_INPUTS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "artifact.md"
BEGIN, END = "<!-- step: written by `make docs` -->", "<!-- end of step -->"
PLACE = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.S)


def with_tables(page: str) -> str:
    """The page with its tables as the code says. Raises ValueError where it has no place."""
    if not PLACE.search(page):
        raise ValueError(f"{PAGE.name} has no place for the tables of a step: {BEGIN} ... {END}")
    return PLACE.sub(lambda _: f"{BEGIN}\n\n{tables()}\n\n{END}", page)


def tables() -> str:
    """The inputs of a step of text, and the symbols in their shapes."""
    inputs = [
        f"| `{array.name}` | {array.dtype} | [{', '.join(map(str, array.shape))}] "
        f"| {array.meaning} |"
        for array in TEXT_INPUTS
    ]
    symbols = [f"| {key} | `{each.name}` | {each.meaning} |" for key, each in SYMBOLS.items()]
    return "\n".join(
        (
            "| input | dtype | shape | meaning |",
            "|---|---|---|---|",
            *inputs,
            "",
            "| symbol | name | counts |",
            "|---|---|---|",
            *symbols,
        )
    )


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
