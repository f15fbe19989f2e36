"""Which room may import what, and the walk over the source that finds every breach."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

# The modules beside the rooms that any room may import.
SHARED = {"errors", "files", "settings", "version", "__version__"}
API = ""  # the modules beside the rooms: the public face, which may use any room
ANY = {"artifact", "ops", "models", "passes", "targets", "compiler", "runtime", "cli"}

ROOMS: dict[str, set[str]] = {
    "artifact": set(),
    "ops": {"artifact"},
    "models": {"ops"},
    "passes": {"ops", "artifact"},
    "targets": {"ops", "artifact"},
    "compiler": {"models", "passes", "ops", "artifact", "targets"},
    "runtime": {"artifact"},
    "cli": ANY | {API},
    API: ANY - {"cli"} | {API},
}
THIRD_PARTY: dict[str, set[str]] = {
    "artifact": {"numpy", "msgspec", "xxhash", "safetensors"},
    "ops": {"torch"},
    "models": {"torch", "numpy", "safetensors"},
    "passes": {"torch"},
    "targets": {"torch", "numpy"},
    "compiler": {"torch", "numpy", "safetensors", "tokenizers", "msgspec"},
    "runtime": {"numpy", "safetensors", "tokenizers", "jinja2", "msgspec", "xxhash"},
    "cli": {"numpy", "rich"},
    API: {"numpy"},
}
READS_ENVIRONMENT = "settings.py"


def breaches(package: Path) -> list[str]:
    """Every import or reading of the environment in the package that the rules forbid."""
    found: list[str] = []
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        room = "cli" if name == "__main__.py" else name.partition("/")[0] if "/" in name else API
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for line, what in _forbidden(tree, room, package.name):
            found.append(f"{package.name}/{name}:{line}: {what}")
        if name != READS_ENVIRONMENT:
            found += [
                f"{package.name}/{name}:{line}: reads the environment" for line in _environ(tree)
            ]
    return found


def _forbidden(tree: ast.AST, room: str, package: str) -> Iterator[tuple[int, str]]:
    if room not in ROOMS:
        yield 1, f"{room} is no room of the table"
        return
    for line, module in imports(tree):
        top, _, rest = module.partition(".")
        if top == "":
            yield line, "relative import"
        elif top == package:
            other = rest.partition(".")[0]
            target = other if other in ROOMS else API
            if other not in SHARED and target != room and target not in ROOMS[room]:
                yield line, f"{room or package} imports {module}"
        elif top not in sys.stdlib_module_names and top not in THIRD_PARTY[room]:
            yield line, f"{room or package} imports {module}"


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
