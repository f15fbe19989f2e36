"""Writes to stdout: JSON for programs, aligned text for people."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

GAP = "  "  # between columns
NO_LIMIT = 1 << 30
NARROWEST, NARROWEST_CELL = 20, 12  # of a line, and of a text in a table


def print_json(value: object, indent: int | None = 2) -> None:
    """Writes `json_text` to stdout.

    Raises nothing if the reader has gone: the exit code still tells the result.
    """
    with contextlib.suppress(BrokenPipeError):
        print(json_text(value, indent), flush=True)


def json_text(value: object, indent: int | None = 2) -> str:
    """One JSON document, a line without an indent; dataclasses become objects, paths strings."""
    return json.dumps(value, indent=indent, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """A value that JSON does not know, in the types of JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def show(text: str) -> None:
    """Prints a text; lines that are too long for the terminal go on below, further to the right.

    Words stay whole, so that a path can be copied.
    """
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()))
        print("\n".join(_wrapped(line, line_width(), indent + "  ", break_long_words=False)))


def table(rows: Iterable[Sequence[object]], header: Sequence[str], indent: str = "  ") -> str:
    """Columns aligned under their header; columns of numbers are aligned to the right.

    Where the terminal is too narrow, texts go on in the next line. Where that is not enough, a
    row becomes a block of lines.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    columns = list(zip(header, *cells, strict=True))
    widths = _widths(columns, line_width() - len(indent) - len(GAP) * (len(columns) - 1))
    if widths is None:
        return "\n".join(_block(row, header, indent) for row in cells)
    numeric = [_is_numeric(column) for column in columns]
    lines = []
    for row in (header, *cells):
        parts = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
        for line in zip_longest(*parts, fillvalue=""):
            padded = map(_padded, line, widths, numeric)
            lines.append((indent + GAP.join(padded)).rstrip())
    return "\n".join(lines)


def facts(pairs: Iterable[tuple[str, object]], indent: str = "  ") -> str:
    """Lines of `name   value`, the values aligned."""
    rows = [(name, str(value)) for name, value in pairs]
    width = max((len(name) for name, _ in rows), default=0)
    heads = (f"{indent}{name:<{width}}{GAP}" for name, _ in rows)
    return "\n".join(_hung(head, value) for head, (_, value) in zip(heads, rows, strict=True))


def line_width() -> int:
    """Columns of the terminal; no limit where stdout is none."""
    columns = shutil.get_terminal_size((NO_LIMIT, 0)).columns
    return max(columns, NARROWEST)


def next_step(*words: str) -> str:
    """The command to go on with, for a shell."""
    line = f"Next: {command()} {shlex.join(words)}"
    if len(line) <= line_width():
        return line
    verb, *rest = map(shlex.quote, words)
    return " \\\n".join((f"Next: {command()} {verb}", *(f"  {word}" for word in rest)))


def command() -> str:
    """Spells ingot as a shell can call it again: by its name, or by the path of this call."""
    if shutil.which("ingot"):
        return "ingot"
    called = Path(sys.argv[0])
    return shlex.quote(os.path.relpath(called)) if called.name == "ingot" else "python -m ingot"


def _padded(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)


def _is_numeric(column: Sequence[str]) -> bool:
    """Tells whether all cells under the header are numbers, or left out."""
    cells = column[1:]
    return bool(cells) and all(cell[:1].isdigit() or cell in ("", "-") for cell in cells)


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """The widths of columns that fit; None if they cannot. Texts are broken between words."""
    widths = [max(map(len, column)) for column in columns]
    words = [
        max(len(word) for cell in column for word in ("", *cell.split())) for column in columns
    ]
    spare = {i: widths[i] - words[i] for i, column in enumerate(columns) if not _is_numeric(column)}
    while sum(widths) > room:
        widest = max(spare, key=spare.__getitem__, default=None)
        if widest is None or spare[widest] <= 0:
            return None
        widths[widest] -= 1
        spare[widest] -= 1
    return widths


def _block(row: Sequence[str], header: Sequence[str], indent: str) -> str:
    """A row as a line with its first cell, and below it the others with their names."""
    title = _hung(indent, row[0])
    pairs = list(zip(header[1:], row[1:], strict=True))
    line = indent * 2 + GAP.join(f"{name} {cell}" for name, cell in pairs)
    return f"{title}\n{line if len(line) <= line_width() else facts(pairs, indent * 2)}"


def _hung(head: str, text: str) -> str:
    """The text beside its head, its further lines below its first."""
    lines = [
        line
        for part in text.split("\n")
        for line in _wrapped(part, max(line_width() - len(head), NARROWEST_CELL))
    ]
    return f"\n{' ' * len(head)}".join((head + lines[0], *lines[1:])).rstrip()


def _wrapped(
    text: str, width: int, indent: str = "", *, break_long_words: bool = True
) -> list[str]:
    """The lines of a text of one line, at least one; all but the first are indented."""
    if len(text) <= width:
        return [text]
    wrapper = textwrap.TextWrapper(
        width,
        subsequent_indent=indent,
        break_long_words=break_long_words,
        break_on_hyphens=False,
    )
    return wrapper.wrap(text) or [""]
