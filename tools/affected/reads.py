"""What each file of the repository reads, as far as its text tells.

A file is a node, named by its path; so is each fixture of a `conftest.py`, as `PATH::NAME`.

- Python reads the modules and files that it names: in imports wherever they stand, but for those
  that only types need, and in strings. Of the package `ingot` it reads the homes of the names that
  it uses, and of a package that it names all modules, since their names may be put together.
- C++ reads what it includes.
- A test reads the `conftest.py` files above it, and of their fixtures those that it names. The ones
  that come unasked are how tests run, and not what they look at.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath

from ingot import _HOMES

Reads = Mapping[str, frozenset[str]]

SOURCES = ("ingot", "tests", "tools", "bench", "golden", "examples")
C_SUFFIXES = (".h", ".c", ".cpp")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
MODULE = re.compile(rf"\b(?:{'|'.join(SOURCES)})(?:\.\w+)+")
FROM = re.compile(rf"^\s*from ((?:{'|'.join(SOURCES)})[\w.]*) import (\([^)]*\)|.*)", re.M)
WORD = re.compile(r"\w+")
FILE = re.compile(r"[\w-]+(?:\.[\w-]+)*\.\w+")
# What runs nothing: docstrings, lines of comment, imports that only types need.
SAID = re.compile(
    r'^[ \t]*r?"""(?s:.*?)"""$|^[ \t]*#.*$|^if (?:typing\.)?TYPE_CHECKING:\n(?:(?:[ \t].*)?\n)*',
    re.M,
)


@dataclass(frozen=True)
class Fixture:
    """A fixture of a `conftest.py`."""

    node: str
    name: re.Pattern[str]
    text: str  # its own, and the imports of its module that it uses


class Repository:
    """The files of a checkout, given by their paths below `root`."""

    def __init__(self, root: Path, files: Iterable[str]) -> None:
        self.root = root
        self.files = frozenset(files)

    @cached_property
    def reads(self) -> Reads:
        """What each node reads."""
        found: dict[str, set[str]] = defaultdict(set)
        for path in sorted(self.files):
            if path.endswith(C_SUFFIXES):
                included = (self._named.get(name, ()) for name in INCLUDE.findall(self.text(path)))
                found[path].update(*included)
            elif path.endswith(".py") and path.partition("/")[0] in SOURCES:
                for node, nodes in self._of_python(path):
                    found[node] |= nodes - {node}
        return {node: frozenset(nodes) for node, nodes in found.items()}

    def text(self, path: str) -> str:
        """What a file says; nothing if it is gone."""
        place = self.root / path
        return place.read_text(encoding="utf-8", errors="replace") if place.is_file() else ""

    def _of_python(self, path: str) -> Iterator[tuple[str, set[str]]]:
        name, text = PurePath(path).name, self.text(path)
        if name == "conftest.py":
            for fixture in self._fixtures[path]:
                yield fixture.node, self._named_in(fixture.text)
                yield fixture.node, self._of_conftests(path, fixture.text)
        else:
            yield path, self._named_in(text)
        if name.startswith("test_"):
            yield path, self._of_conftests(path, text)

    def _named_in(self, text: str) -> set[str]:
        text = SAID.sub("", text)
        found: set[str] = set()
        for package, names in FROM.findall(text):
            imported = (f"{package}.{name}" for name in WORD.findall(names))
            found.update(self._module(_HOMES.get(n.removeprefix("ingot."), n)) for n in imported)
        for name in set(MODULE.findall(FROM.sub("", text))):
            found.add(self._module(_HOMES.get(name.removeprefix("ingot."), name)))
            found |= self._packages.get(name.replace(".", "/"), frozenset())
        for name in set(FILE.findall(text)):
            found |= self._named.get(name, frozenset())
        return found - {""}

    def _module(self, name: str) -> str:
        """The file of a module, or of the one that a name is from; nothing for those of others."""
        while "." in name:
            place = name.replace(".", "/")
            for path in (f"{place}.py", f"{place}/__init__.py", f"{place}/__main__.py"):
                if path in self.files:
                    return path
            name = name.rpartition(".")[0]
        return ""

    def _of_conftests(self, path: str, text: str) -> set[str]:
        """The `conftest.py` files above a file with that text, and their fixtures that it gets."""
        conftests = {str(folder / "conftest.py") for folder in PurePath(path).parents} & self.files
        fixtures = (fixture for conftest in conftests for fixture in self._fixtures[conftest])
        return conftests | {f.node for f in fixtures if f.name.search(text)}

    @cached_property
    def _named(self) -> Mapping[str, frozenset[str]]:
        """Files that are no modules, by their names without folders."""
        return _grouped((PurePath(path).name, path) for path in self.files if path[-3:] != ".py")

    @cached_property
    def _packages(self) -> Mapping[str, frozenset[str]]:
        """The modules of each folder."""
        return _grouped((str(PurePath(p).parent), p) for p in self.files if p.endswith(".py"))

    @cached_property
    def _fixtures(self) -> Mapping[str, list[Fixture]]:
        """Those of each `conftest.py`."""
        conftests = (path for path in self.files if PurePath(path).name == "conftest.py")
        return {path: list(_fixtures(path, self.text(path))) for path in conftests}


def _fixtures(path: str, text: str) -> Iterator[Fixture]:
    tree = ast.parse(text)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    for body in tree.body:
        if isinstance(body, ast.FunctionDef):
            marks, own = " ".join(map(ast.unparse, body.decorator_list)), ast.unparse(body)
            if "fixture" in marks and "autouse=True" not in marks:
                words = set(WORD.findall(own))
                used = (i for i in imports if any({a.asname, a.name} & words for a in i.names))
                whole = "\n".join((*map(ast.unparse, used), own))
                name = re.compile(rf"\b{body.name}\b")
                yield Fixture(f"{path}::{body.name}", name, whole)


def _grouped(pairs: Iterable[tuple[str, str]]) -> Mapping[str, frozenset[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for key, value in pairs:
        found[key].add(value)
    return {key: frozenset(values) for key, values in found.items()}
