"""Which room may import what, and the walk over the source that finds every breach."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

# The modules beside the rooms that any room may import.
SHARED = {"errors", "files", "say", "settings", "version", "__version__"}
API = "api"  # the modules beside the rooms: the public face

# From the ground up: each room, and those that it may import and does.
ROOMS: dict[str, set[str]] = {
    "artifact": set(),
    "cache": {"artifact"},
    "ops": {"artifact"},
    "models": {"ops", "artifact"},
    "passes": {"ops", "artifact"},
    "targets": {"cache", "ops", "artifact"},
    "compiler": {"cache", "models", "passes", "ops", "artifact", "targets"},
    "hub": {"compiler", "models", "artifact"},
    "onnx": {"compiler", "models", "passes", "ops", "artifact"},
    "runtime": {"artifact"},
    API: {"hub", "cache", "compiler", "models", "runtime", "artifact"},
    "serve": {API, "runtime", "artifact"},
    "compare": {"hub", "compiler", "models", "passes", "targets", "runtime", "ops", "artifact"},
    "cli": {API, "serve", "compare", "onnx", "hub", "compiler", "cache", "runtime", "artifact"},
}
THIRD_PARTY: dict[str, set[str]] = {
    "artifact": {"numpy", "msgspec", "tokenizers"},
    "cache": set(),
    "ops": {"torch"},
    "models": {"torch", "numpy", "transformers"},
    "passes": {"torch"},
    "targets": {"torch", "numpy", "triton"},
    "compiler": {"torch", "numpy", "tokenizers"},
    "onnx": {"torch", "numpy", "onnx", "onnx_ir", "onnxscript", "onnxruntime"},
    "runtime": {"numpy", "tokenizers", "jinja2", "msgspec", "xxhash", "llguidance"},
    "serve": {
        "httptools",
        "msgspec",
        "starlette",
        "uvicorn",
        "uvloop",
        "prometheus_client",
        "opentelemetry",
        "grpc",
        "grpc_health",
        "grpc_reflection",
        "ray",
    },
    "compare": {"numpy", "torch", "transformers", "onnxruntime"},
    "cli": {"numpy", "rich", "jinja2", "msgspec", "onnx"},
    "hub": {"huggingface_hub"},
    API: {"numpy"},
}
READS_ENVIRONMENT = "settings.py"


@dataclass(frozen=True)
class Facts:
    """What a source says that several tests ask of it."""

    imports: tuple[tuple[int, str], ...]  # lines and modules, see `imports`
    environ: tuple[int, ...]  # the lines that read the environment


@cache
def facts(source: str) -> Facts:
    """Those of a source. Parsing all of the package takes seconds, so it is done once."""
    tree = ast.parse(source)
    return Facts(tuple(imports(tree)), tuple(_environ(tree)))


def facts_of(file: Path) -> Facts:
    return facts(file.read_text(encoding="utf-8"))


def breaches(package: Path) -> list[str]:
    """Every import or reading of the environment in the package that the rules forbid."""
    found: list[str] = []
    for name, each in _sources(package):
        for line, what in _forbidden(each, _room(name), package.name):
            found.append(f"{package.name}/{name}:{line}: {what}")
        if name != READS_ENVIRONMENT:
            found += [
                f"{package.name}/{name}:{line}: reads the environment" for line in each.environ
            ]
    return found


def arrows(package: Path) -> dict[str, set[str]]:
    """The rooms that each room of the package imports."""
    found: dict[str, set[str]] = {room: set() for room in ROOMS}
    for name, each in _sources(package):
        others = (_imported_room(module, package.name) for _, module in each.imports)
        if Path(name).stem not in SHARED:
            found[_room(name)] |= {other for other in others if other not in ("", _room(name))}
    return found


def drawing(rooms: Mapping[str, set[str]]) -> str:
    """The rooms and their arrows as text, from the top down.

    A line to the right of a room ends in a dot above each room that it imports.
    """
    names = list(reversed(rooms))
    columns = dict(zip(names, accumulate((len(n) + 3 for n in names), initial=0), strict=False))
    lines: list[str] = []
    reached: set[str] = set()
    for name in names:
        if lines:
            lines.append(_row({columns[n]: "▼" if n == name else "│" for n in reached}))
        reached.discard(name)
        end = max((columns[n] for n in rooms[name]), default=0)
        dashes = dict.fromkeys(range(columns[name] + len(name) + 1, end), "─")
        passed = {columns[n]: "┼" if columns[n] < end else "│" for n in reached}
        dots = {columns[n]: "●" for n in rooms[name]}
        letters = dict(enumerate(name, start=columns[name]))
        lines.append(_row(dashes | passed | dots | letters))
        reached |= rooms[name]
    return "\n".join(lines)


def _row(marks: Mapping[int, str]) -> str:
    return "".join(marks.get(column, " ") for column in range(max(marks) + 1))


def _sources(package: Path) -> Iterator[tuple[str, Facts]]:
    for file in sorted(package.rglob("*.py")):
        yield file.relative_to(package).as_posix(), facts_of(file)


def _room(name: str) -> str:
    """The room that a file of the package is in."""
    return "cli" if name == "__main__.py" else name.partition("/")[0] if "/" in name else API


def _imported_room(module: str, package: str) -> str:
    """The room that a module is in; empty for what any room may import."""
    top, _, rest = module.partition(".")
    part = rest.partition(".")[0]
    if top != package or part in SHARED:
        return ""
    return part if part in ROOMS else API


def _forbidden(each: Facts, room: str, package: str) -> Iterator[tuple[int, str]]:
    if room not in ROOMS:
        yield 1, f"{room} is no room of the table"
        return
    for line, module in each.imports:
        top = module.partition(".")[0]
        if top == "":
            yield line, "relative import"
        elif top == package:
            if _imported_room(module, package) not in ("", room, *ROOMS[room]):
                yield line, f"{room} imports {module}"
        elif top not in sys.stdlib_module_names and top not in THIRD_PARTY[room]:
            yield line, f"{room} imports {module}"


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every imported module, those inside functions and type-checking blocks too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, ""
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from ingot import runtime` names a room as `import ingot.runtime` does
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _environ(tree: ast.AST) -> Iterator[int]:
    names = {"environ", "environb", "getenv", "putenv"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in names:
            if isinstance(node.value, ast.Name) and node.value.id == "os":
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            yield from (node.lineno for alias in node.names if alias.name in names)
