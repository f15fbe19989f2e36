"""Writes the tables of what programs are given into docs/artifact.md; `make docs` runs it."""

from __future__ import annotations

import re
from pathlib import Path

from ingot.artifact.programs import PROGRAMS
from ingot.artifact.spec import SYMBOLS, Array

PAGE = Path(__file__).resolve().parent.parent / "docs" / "artifact.md"
BEGIN, END = "<!-- step: written by `make docs` -->", "<!-- end of step -->"
PLACE = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.S)


def with_tables(page: str) -> str:
    """The page with its tables as the code says. Raises ValueError where it has no place."""
    if not PLACE.search(page):
        raise ValueError(f"{PAGE.name} has no place for the tables of a step: {BEGIN} ... {END}")
    return PLACE.sub(lambda _: f"{BEGIN}\n\n{tables()}\n\n{END}", page)


def tables() -> str:
    """The programs, the inputs of each, and the symbols in their shapes."""
    programs = [
        f"| `{each.name}` | {each.meaning} | {', '.join(f'`{o.name}`' for o in each.outputs)} |"
        for each in PROGRAMS.values()
    ]
    arrays = {array: None for each in PROGRAMS.values() for array in each.inputs}
    inputs = [
        f"| `{array.name}` | {array.dtype} | [{', '.join(map(str, array.shape))}] "
        f"| {array.meaning} | {_takers(array)} |"
        for array in arrays
    ]
    symbols = [f"| {key} | `{each.name}` | {each.meaning} |" for key, each in SYMBOLS.items()]
    return "\n".join(
        (
            "| program | what it does | fills |",
            "|---|---|---|",
            *programs,
            "",
            "| input | dtype | shape | meaning | of |",
            "|---|---|---|---|---|",
            *inputs,
            "",
            "| symbol | name | counts |",
            "|---|---|---|",
            *symbols,
        )
    )


def _takers(array: Array) -> str:
    """The programs that take an input."""
    takers = [each.name for each in PROGRAMS.values() if array in each.inputs]
    return "all" if len(takers) == len(PROGRAMS) else ", ".join(takers)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
