"""Finds circles of imports between the modules of a package."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path


def circles(package: Path) -> list[tuple[str, ...]]:
    """The groups of modules that import one another on being imported, each sorted.

    Counted is what runs when a module is imported: nothing inside functions, and nothing that only
    type checkers see. Names are relative to the package, as in `runtime.engine`.
    """
    graph = {name: set(arrows) for name, arrows in arrows_of(package).items()}
    return sorted(tuple(sorted(group)) for group in _components(graph) if len(group) > 1)


def arrows_of(package: Path) -> Mapping[str, list[str]]:
    """For each module, the modules of the package that it imports."""
    files = {_name(file, package): file for file in sorted(package.rglob("*.py"))}
    found = {}
    for name, file in files.items():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        wanted = [_longest(module, package.name, files) for module in _imports(tree.body)]
        found[name] = [other for other in wanted if other and other != name]
    return found


def _name(file: Path, package: Path) -> str:
    parts = file.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "__init__"


def _longest(module: str, package: str, known: Mapping[str, Path]) -> str:
    """The module of the package that a dotted name names, or an attribute of; "" for others."""
    top, _, rest = module.partition(".")
    if top != package:
        return ""
    parts = rest.split(".")
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in known:
            return ".".join(parts[:end])
    return "__init__"


def _imports(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from _imports(node.orelse)
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ClassDef)):
            yield from _imports([n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)])


def _components(graph: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """The strongly connected components: what reaches each other."""
    reached = {name: _reach(graph, name) for name in graph}
    done: set[str] = set()
    for name in graph:
        if name not in done:
            group = {n for n in reached[name] if name in reached[n]} | {name}
            done |= group
            yield group


def _reach(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for other in graph.get(waiting.pop(), ()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found
