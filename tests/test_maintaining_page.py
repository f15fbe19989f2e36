"""The page docs/maintaining.md names files, classes and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "maintaining.md"
NAMED = set(re.findall(r"`([A-Za-z_][\w./]*)(?:\(\))?`", PAGE.read_text()))
ROOMS = ("ingot", "bench", "tools", "docs")
FILES = [
    str(path.relative_to(ROOT))
    for path in (
        *ROOT.glob("*.md"),
        *(path for room in ROOMS for path in (ROOT / room).rglob("*.*")),
    )
]
CLASS = re.compile(r"[A-Z][a-z]+[A-Za-z]*(\.\w+)?$")


def defined() -> set[str]:
    """Classes and their methods, by name."""
    found = set()
    for path in (ROOT / "ingot").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.add(node.name)
                inside = [
                    n
                    for n in ast.walk(node)
                    if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
                ]
                found |= {f"{node.name}.{n.name}" for n in inside}
    return found


@pytest.mark.parametrize("name", sorted(n for n in NAMED if n.endswith((".py", ".h", ".md"))))
def test_files_that_the_page_names_exist(name: str) -> None:
    assert any(f"/{file}".endswith(f"/{name}") for file in FILES)


def test_classes_that_the_page_names_exist() -> None:
    named = {name for name in NAMED if CLASS.match(name)}
    assert len(named) > 20, "the control: it names many"
    assert named - defined() == set()
