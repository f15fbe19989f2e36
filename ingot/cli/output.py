"""What goes to stdout: JSON for programs, aligned text for people."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def print_json(value: object, indent: int | None = 2) -> None:
    """Writes one JSON document to stdout; dataclasses become objects, paths strings.

    Without an indent it is one line.

    Raises nothing if the reader has gone: the exit code still tells the result.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=_plain)
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)


def _plain(value: Any) -> Any:
    """A value that JSON does not know, in the types of JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def table(rows: Iterable[Sequence[object]], header: Sequence[str], indent: str = "  ") -> str:
    """Columns aligned under their header; columns of numbers are aligned to the right."""
    columns = zip(header, *(map(str, row) for row in rows), strict=True)
    lines = zip(*map(_aligned, columns), strict=True)
    return "\n".join(indent + "  ".join(line).rstrip() for line in lines)


def facts(pairs: Iterable[tuple[str, object]], indent: str = "  ") -> str:
    """Lines of `name   value`, the values aligned."""
    rows = [(name, str(value)) for name, value in pairs]
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{indent}{name:<{width}}  {value}".rstrip() for name, value in rows)


def command() -> str:
    """How a shell can call ingot again: by its name, or by the path of this call."""
    if shutil.which("ingot"):
        return "ingot"
    called = Path(sys.argv[0])
    return shlex.quote(os.path.relpath(called)) if called.name == "ingot" else "python -m ingot"


def _aligned(column: Sequence[str]) -> list[str]:
    """The header and the cells of a column, padded to one width."""
    cells, width = column[1:], max(map(len, column))
    numeric = cells and all(cell[:1].isdigit() or cell in ("", "-") for cell in cells)
    return [cell.rjust(width) if numeric else cell.ljust(width) for cell in column]
