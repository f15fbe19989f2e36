"""Finds circles of imports between the modules of a package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.import_rules import facts_of


def circles(package: Path) -> list[tuple[str, ...]]:
    """The groups of modules that need one another, each sorted.

    Every import counts, those inside functions and for type checkers too: they postpone a circle
    and do not open it. The package itself is left out, since it only hands on names. Names are
    relative to the package, as in `runtime.engine`.
    """
    graph = {name: set(arrows) for name, arrows in arrows_of(package).items()}
    return sorted(tuple(sorted(group)) for group in _components(graph) if len(group) > 1)


def arrows_of(package: Path) -> Mapping[str, list[str]]:
    """For each module, the modules of the package that it imports."""
    files = {_name(file, package): file for file in sorted(package.rglob("*.py"))}
    files.pop("", None)
    found = {}
    for name, file in files.items():
        modules = (module for _, module in facts_of(file).imports)
        wanted = [_longest(module, package.name, files) for module in modules]
        found[name] = [other for other in wanted if other and other != name]
    return found


def _name(file: Path, package: Path) -> str:
    parts = file.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _longest(module: str, package: str, known: Mapping[str, Path]) -> str:
    """The module of the package that a dotted name names, or "" for none and for its face."""
    top, *parts = module.split(".")
    if top != package:
        return ""
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in known:
            return ".".join(parts[:end])
    return ""


def _components(graph: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """The strongly connected components: what reaches each other."""
    reached = {name: reach(graph, name) for name in graph}
    done: set[str] = set()
    for name in graph:
        if name not in done:
            group = {n for n in reached[name] if name in reached[n]} | {name}
            done |= group
            yield group


def reach(graph: Mapping[str, Iterable[str]], start: str) -> set[str]:
    """The modules that one needs, directly or not."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for other in graph.get(waiting.pop(), ()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found
