"""How often the files of a folder are opened, and how often the folder is looked through."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_watched: list[tuple[Path, Counter[str]]] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched and event in ("open", "os.listdir", "os.scandir"):
        path = arguments[0]
        if isinstance(path, str | bytes | os.PathLike):
            for folder, seen in _watched:
                if folder in ((place := Path(os.path.abspath(os.fsdecode(path)))), place.parent):
                    seen["." if place == folder else place.name] += 1


sys.addaudithook(_hook)  # nobody can take it away again


@contextmanager
def readings(folder: Path) -> Iterator[Counter[str]]:
    """Counts what is opened in a folder, by whatever code: its files by name, itself as "."."""
    seen: Counter[str] = Counter()
    _watched.append((folder.resolve(), seen))
    try:
        yield seen
    finally:
        _watched.pop()
