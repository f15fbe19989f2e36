"""Dependencies of a compile beside the model, the options and ingot: torch, tools, plug-ins.

It is read without importing torch, so that a model that lies compiled in the cache starts fast.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from inspect import isclass, isfunction
from itertools import count
from pathlib import Path
from typing import Any

from ingot.errors import ToolchainError
from ingot.files import stamp
from ingot.targets.target import BUILT_IN, KINDS, TargetKind, kind_named

FAMILIES = "ingot.families"  # the entry points of packages that offer families
_PROCESS = os.urandom(16).hex()  # for what no file tells: it is compiled again in every process
_asked = count()


def surroundings() -> dict[str, Any]:
    """Changes with everything of that kind that an artifact can depend on; fit for JSON."""
    return {
        "torch": _version("torch"),
        "transformers": _version("transformers"),
        "tools": [_tools(kind_named(name)) for name in BUILT_IN],
        "installed": list(_installed_families()),
        "registered": list(_registered()),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _tools(kind: TargetKind) -> list[str | int]:
    """Tools that build for a kind of target."""
    try:
        return [*kind.tools()]
    except ToolchainError as error:  # a compile will say so, if there has to be one
        return [error.found]
    except (OSError, subprocess.TimeoutExpired):
        return [_unknown()]


def _installed_families() -> Iterator[list[Any]]:
    """Each entry point, the version of its package, and the sources that it comes from."""
    for point in sorted(metadata.entry_points(group=FAMILIES), key=lambda p: (p.name, p.value)):
        version = point.dist.version if point.dist else ""
        yield [point.name, point.value, version, *_sources(point.module)]


def _registered() -> Iterator[list[Any]]:
    """Families and kinds of target that this process has registered, by their sources."""
    # To register a family imports this module, which imports torch.
    registry = sys.modules.get("ingot.models.registry")
    for family in registry.registered() if registry else ():
        yield [repr(replace(family, parse=None, build=None))]
        yield from (list(_sources(_module(part))) for part in (family.parse, family.build) if part)
    for name, kind in sorted(KINDS.items()):
        if not isinstance(kind, str) and not _is_ours(type(kind).__module__):
            yield [name, repr(getattr(kind, "__dict__", "")), *_sources(_module(type(kind)))]


def _module(thing: Any) -> str:
    """The module that holds all of a function or class; empty for what has values of its own."""
    if isclass(thing) or (isfunction(thing) and not thing.__closure__):
        return str(thing.__module__)
    return ""


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "ingot"


def _sources(module: str) -> Iterator[Any]:
    """The files of the package that a module is in, by path, size and time of change.

    Nothing for those of ingot, which the key of the cache has. What has no files, such as a
    function that was typed in, is unlike anything before.
    """
    if not _is_ours(module):
        files = list(_files(module.partition(".")[0]))
        yield from ([str(path), *stamp(path)] for path in files)
        if not files:
            yield _unknown()


def _files(top: str) -> Iterator[Path]:
    """Files of a top package or module, which is not imported for that."""
    if top == "__main__":
        file = getattr(sys.modules[top], "__file__", None)
        folders: list[str] = []
    else:
        try:
            spec = find_spec(top) if top else None
        except (ImportError, ValueError):  # a module that was not loaded from anywhere
            spec = None
        file = spec.origin if spec else None
        folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        found = (path for path in sorted(Path(folder).rglob("*")) if path.is_file())
        yield from (path for path in found if path.parent.name != "__pycache__")
    if file and not folders and Path(file).is_file():
        yield Path(file)


def _unknown() -> str:
    return f"{_PROCESS}-{next(_asked)}"
