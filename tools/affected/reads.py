"""What each file of the repository reads, as far as its text tells.

A file is a node, named by its path; so is each fixture of a `conftest.py`, as `PATH::NAME`. Python
reads the modules that it imports anywhere, and the modules and files that its strings name; of the
package `ingot`, the homes of the names that it uses. C++ reads what it includes. A test reads the
`conftest.py` files above it, and of their fixtures those whose names it has, or that it gets unasked.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePath

from ingot import _HOMES

Reads = Mapping[str, frozenset[str]]

SOURCES = ("ingot", "tests", "tools", "bench", "golden", "examples")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
MODULE = re.compile(r"(?:ingot|tests|tools|bench|golden|examples)(?:\.\w+)+")
OF_INGOT = re.compile(r"\bingot\.(\w+)")
FILE = re.compile(r"[\w.-]+\.\w+")
C_SUFFIXES = (".h", ".c", ".cpp")


class Repository:
    """The files of a checkout, given by their paths below `root`."""

    def __init__(self, root: Path, files: Iterable[str]) -> None:
        self.root = root
        self.files = frozenset(files)

    @cached_property
    def reads(self) -> Reads:
        """What each node reads."""
        found: dict[str, set[str]] = defaultdict(set)
        for path in self.files:
            if path.endswith(C_SUFFIXES):
                included = (self._named.get(name, ()) for name in INCLUDE.findall(self.text(path)))
                found[path].update(*included)
            elif path.endswith(".py") and path.partition("/")[0] in SOURCES:
                for node, names in self._of_python(path):
                    found[node] |= names
        return {node: frozenset(names - {node}) for node, names in found.items()}

    def text(self, path: str) -> str:
        """What a file says; nothing if it is gone."""
        place = self.root / path
        return place.read_text(encoding="utf-8", errors="replace") if place.is_file() else ""

    @cached_property
    def _named(self) -> Mapping[str, frozenset[str]]:
        """Files that are no modules, by their names without folders."""
        found = defaultdict(set)
        for path in self.files:
            if not path.endswith(".py"):
                found[PurePath(path).name].add(path)
        return {name: frozenset(paths) for name, paths in found.items()}

    def _of_python(self, path: str) -> Iterator[tuple[str, set[str]]]:
        text = self.text(path)
        try:
            tree = ast.parse(text)
        except SyntaxError:
            return
        if PurePath(path).name == "conftest.py":
            yield path, set[str]()
            for name, body in _fixtures(tree):
                yield f"{path}::{name}", self._names(body, ast.unparse(body), tree)
                yield f"{path}::{name}", self._from_conftest(path, ast.unparse(body))
        else:
            yield path, self._names(tree, text)
        if PurePath(path).name.startswith("test_"):
            yield path, self._from_conftest(path, text)

    def _names(self, tree: ast.AST, text: str, around: ast.Module | None = None) -> set[str]:
        """What a module, or a function of it, imports and names."""
        found = set(_imports(tree))
        if around is not None:
            found |= {module for name, module in _bound(around) if re.search(rf"\b{name}\b", text)}
        found.update(_HOMES[name] for name in OF_INGOT.findall(text) if name in _HOMES)
        modules = {self._module(name) for name in found}
        for string in _strings(tree):
            for name in MODULE.findall(string):
                modules |= self._in_package(name) or {self._module(name)}
            for name in FILE.findall(string):
                modules |= self._named.get(name, frozenset())
        return {path for path in modules if path}

    def _module(self, name: str) -> str:
        """The file of a module, or of the one that a name is from; nothing for those of others."""
        while "." in name:
            place = name.replace(".", "/")
            for path in (f"{place}.py", f"{place}/__init__.py", f"{place}/__main__.py"):
                if path in self.files:
                    return path
            name = name.rpartition(".")[0]
        return ""

    def _in_package(self, name: str) -> frozenset[str]:
        """The modules of a package, which whoever names it may import by names made later."""
        return self._packages.get(name.replace(".", "/"), frozenset())

    @cached_property
    def _packages(self) -> Mapping[str, frozenset[str]]:
        found = defaultdict(set)
        for path in self.files:
            if path.endswith(".py"):
                found[str(PurePath(path).parent)].add(path)
        return {folder: frozenset(paths) for folder, paths in found.items()}

    def _from_conftest(self, path: str, text: str) -> set[str]:
        """The files of fixtures that a test may use, and the fixtures that it does."""
        found: set[str] = set()
        for folder in PurePath(path).parents:
            conftest = str(folder / "conftest.py")
            if conftest in self.files:
                found.add(conftest)
                for name, body in _fixtures(ast.parse(self.text(conftest))):
                    if _is_unasked(body) or re.search(rf"\b{name}\b", text):
                        found.add(f"{conftest}::{name}")
        return found


def _imports(tree: ast.AST) -> Iterator[str]:
    """Every imported name with its module, but for those that only types need."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        todo.extend(ast.iter_child_nodes(node))


def _bound(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that imports of a module give, and what they are."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            yield from ((a.asname or a.name.partition(".")[0], a.name) for a in node.names)


def _strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _fixtures(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            if any("fixture" in ast.unparse(each) for each in node.decorator_list):
                yield node.name, node


def _is_unasked(fixture: ast.FunctionDef) -> bool:
    return any("autouse=True" in ast.unparse(each) for each in fixture.decorator_list)
