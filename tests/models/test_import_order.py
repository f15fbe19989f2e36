"""Modules of ingot.models import each other in one direction."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import ingot.models

ROOT = Path(ingot.models.__file__).parent


def imported(path: Path) -> set[str]:
    """What a file imports, at its top or inside of functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def test_there_is_no_circle() -> None:
    files = {
        ".".join(("ingot.models", *path.relative_to(ROOT).with_suffix("").parts)): path
        for path in ROOT.rglob("*.py")
    }
    graph = {name: imported(path) & files.keys() for name, path in files.items()}
    assert "ingot.models.checkpoints.weight_table" in graph["ingot.models.checkpoints.checkpoint"]
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert set(order) == set(files)
