"""Measures how a package is divided: what budgets of lines do not see. `make size` prints it.

A module that one other imports, and a helper of three lines that one function calls, are rooms that
a reader has to enter and leave again. Two classes of one name make him ask which is meant.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SHORT = 3  # lines of a helper, without its signature and docstring
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Structure:
    """The modules of a package: their trees, by dotted names."""

    trees: Mapping[str, ast.Module]

    @classmethod
    def of(cls, package: Path) -> Structure:
        files = sorted(package.rglob("*.py"))
        return cls({_name(file, package): ast.parse(file.read_text()) for file in files})

    @cached_property
    def imports(self) -> Mapping[str, set[str]]:
        """For each module those of the package that it imports, at whatever place."""
        return {name: {*self._imported(tree)} - {name} for name, tree in self.trees.items()}

    @property
    def rooms(self) -> set[str]:
        """The folders that hold modules."""
        return {name.rpartition(".")[0] for name in self.trees} - {""}

    @property
    def with_one_importer(self) -> list[str]:
        importers: Counter[str] = Counter()
        for imported in self.imports.values():
            importers.update(imported)
        return [name for name, count in importers.items() if count == 1]

    @property
    def short_helpers(self) -> list[str]:
        """Functions of at most SHORT lines that are named once beside their definition."""
        found = [each for tree in self.trees.values() for each in _functions(tree)]
        defined = Counter(each.name for each in found)
        named: Counter[str] = Counter()
        for tree in self.trees.values():
            named.update(_names(tree))
        return [
            each.name
            for each in found
            if defined[each.name] == named[each.name] == 1 and _length(each) <= SHORT
        ]

    @property
    def doubled_classes(self) -> list[str]:
        """The names of classes that stand in several modules."""
        names = Counter(
            node.name
            for tree in self.trees.values()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        )
        return sorted(name for name, count in names.items() if count > 1)

    def floors(self, room: str) -> int:
        """How many modules of a room stand on one another at most."""
        inside = {name for name in self.trees if name.startswith(f"{room}.")}
        heights: dict[str, int] = {}

        def height(name: str, above: frozenset[str]) -> int:
            if name not in heights:
                below = self.imports[name] & inside - above
                heights[name] = 1 + max((height(n, above | {n}) for n in below), default=0)
            return heights[name]

        return max((height(name, frozenset({name})) for name in inside), default=0)

    def _imported(self, tree: ast.Module) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = {f"{node.module}.{alias.name}" for alias in node.names} & self.trees.keys()
                yield from names or ({node.module} & self.trees.keys())
            elif isinstance(node, ast.Import):
                yield from {alias.name for alias in node.names} & self.trees.keys()


def table(structure: Structure, room: str) -> list[tuple[str, int]]:
    """The measures, each with its figure."""
    return [
        ("rooms", len(structure.rooms)),
        ("modules", len(structure.trees)),
        ("modules with one importer", len(structure.with_one_importer)),
        (f"helpers of <= {SHORT} lines with one caller", len(structure.short_helpers)),
        ("class names used twice", len(structure.doubled_classes)),
        (f"floors in {room}", structure.floors(room)),
    ]


def _name(file: Path, package: Path) -> str:
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def _functions(tree: ast.Module) -> Iterator[Function]:
    """Functions of a module and methods, but for what Python calls by itself."""
    holders: list[ast.Module | ast.ClassDef] = [tree]
    holders += [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for holder in holders:
        for node in holder.body:
            if isinstance(node, Function) and not node.name.startswith("__"):
                yield node


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def _length(function: Function) -> int:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return sum((each.end_lineno or each.lineno) - each.lineno + 1 for each in body)
