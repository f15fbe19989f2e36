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


def print_json(value: object) -> None:
    """Writes one JSON document to stdout; dataclasses become objects, paths strings.

    Raises nothing if the reader has gone: the exit code still tells the result.
    """
    text = json.dumps(to_builtins(value), indent=2, ensure_ascii=False)
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)


def to_builtins(value: Any) -> Any:
    """The value in the types of JSON; raises TypeError for a value that has none."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return {name: to_builtins(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {str(key): to_builtins(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_builtins(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} has no JSON form")


def table(rows: Iterable[Sequence[object]], header: Sequence[str], indent: str = "  ") -> str:
    """Columns aligned under their header; columns of numbers are aligned to the right."""
    body = [[str(cell) for cell in row] for row in rows]
    lines = [list(header), *body]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    numeric = [
        bool(body) and all(_starts_with_digit(row[column]) for row in body)
        for column in range(len(header))
    ]
    return "\n".join(indent + _align(line, widths, numeric) for line in lines)


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


def _starts_with_digit(cell: str) -> bool:
    return cell[:1].isdigit() or cell in ("", "-")


def _align(line: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    cells = zip(line, widths, numeric, strict=True)
    padded = (cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells)
    return "  ".join(padded).rstrip()
