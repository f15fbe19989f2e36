"""Runs the code of a page in docs/: blocks whose first line names a file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"```(\w+)[^\n]*\n(?:#|//) (\S+\.\w+)\n(.*?)```", re.S)


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """(file name, text) of the blocks of a page in these languages, in order."""
    found = BLOCK.findall((DOCS / page).read_text())
    return [(name, text) for language, name, text in found if language in languages]


@contextmanager
def files_on_path(page: str, folder: Path) -> Iterator[list[str]]:
    """Writes a page's Python files into a folder that modules are imported from; their names.

    The modules are forgotten afterwards.
    """
    names = []
    for name, text in blocks(page, "python"):
        (folder / name).write_text(text)
        names.append(name)
    sys.path.insert(0, str(folder))
    try:
        yield names
    finally:
        sys.path.remove(str(folder))
        for name in names:
            sys.modules.pop(Path(name).stem, None)


def run(path: Path) -> ModuleType:
    """Runs a file as a module of its own."""
    spec = util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
