"""`ingot doctor`: what this host can build and run."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ingot.cli.arguments import Arguments
from ingot.cli.failure import CORE, how_to_install
from ingot.cli.numbers import format_bytes
from ingot.cli.output import facts, print_json, show
from ingot.errors import IngotError
from ingot.version import __version__

ARGUMENTS: Arguments = ()

COMPILING = (*CORE, "torch", "rich")  # what running and compiling need
SERVING = ("uvicorn", "starlette", "llguidance", "grpcio")
BYTES = "_bytes"  # ends the name of a size
TITLES = {"cuda": "CUDA"}
HUGE_PAGES = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"

Section = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Missing:
    """A thing that this host lacks, and how to get it."""

    what: str
    remedy: str


def main(args: argparse.Namespace) -> int:
    """Shows what this host can build and run: processor, memory, compilers, cache and versions.
    Says what is missing and how to get it. Works without torch. Paste what it prints into bug
    reports."""
    missing: list[Missing] = []
    targets = runnable_targets()
    if not targets:
        missing.append(Missing("x86-64", "Nothing here runs on another processor."))
    sections = {
        "host": host(targets),
        "memory": memory(missing),
        "compiler": compiler((*targets, "cpu:portable")[0], missing),
        "cuda": cuda(),
        "serving": {name: _version(name) for name in SERVING},
        "cache": cache(missing),
        "versions": versions(missing),
    }
    if args.json:
        print_json({**sections, "missing": missing})
    else:
        show(summary(sections, missing))
    return 0


def summary(sections: dict[str, Section], missing: list[Missing]) -> str:
    """The sections as text, and what is missing."""
    parts = [
        f"{TITLES.get(title, title.capitalize())}\n"
        + facts(_shown(name, value) for name, value in section.items())
        for title, section in sections.items()
    ]
    lacks = facts((each.what, each.remedy) for each in missing) or "  nothing"
    return "\n\n".join((*parts, f"Missing\n{lacks}"))


def runnable_targets() -> list[str]:
    """The CPU targets that this host runs, the best first, each with the features that the host
    has beyond its level."""
    from ingot.artifact.host import host_flags
    from ingot.compiler.choose_targets import runnable_cpus

    return [target.name for target in runnable_cpus(host_flags())]


def host(targets: list[str]) -> Section:
    """The system, the processor, and how many threads a model runs on by default."""
    from ingot.artifact.host import core_cache, cpu_quota, processor_name, usable_processors

    return {
        "system": f"{' '.join(os.uname()[::2])}, {' '.join(platform.libc_ver())}",
        "processor": processor_name() or platform.machine(),
        "runs_targets": targets,
        "processors": os.cpu_count(),
        "affinity": len(os.sched_getaffinity(0)),
        "cpu_quota": cpu_quota(),
        "threads": usable_processors(),
        "l2_cache_bytes": core_cache(),
    }


def memory(missing: list[Missing]) -> Section:
    """Size of the memory, and when the system gives huge pages."""
    from ingot.artifact.host import available_memory, huge_pages, system_memory

    pages = huge_pages()
    if pages == "never":
        missing.append(Missing("huge pages", f"They make reading weights faster: {HUGE_PAGES}"))
    return {
        "total_bytes": system_memory().get("MemTotal"),
        "available_bytes": available_memory(),
        "huge_pages": pages or None,
    }


def compiler(target: str, missing: list[Missing]) -> Section:
    """The C++ compiler, tried for a target."""
    try:
        tried = tried_tools(target)
    except IngotError as error:
        missing.append(Missing("C++ compiler", f"{error.found}\n{error.hint}"))
        return {"command": None, "version": None, "builds": None}
    return {**tried, "builds": target}


def cuda() -> Section:
    """Builder for NVIDIA's cards, or why there is none. Few need it: it is never missing."""
    from ingot.artifact.target import CUDA_TARGETS

    try:
        tried = tried_tools(CUDA_TARGETS[0])
    except IngotError as error:
        return {"builds": None, "triton": None, "assembler": None, "lacks": str(error)}
    return {
        "builds": list(CUDA_TARGETS),
        "triton": tried["triton"],
        "assembler": tried["ptxas"],
        "lacks": None,
    }


def tried_tools(target: str) -> dict[str, str]:
    """What has built next to nothing for a target. Raises ToolchainError."""
    from ingot.compiler.choose_targets import resolve_target
    from ingot.compiler.preflight import check_tools

    (tried,) = check_tools([resolve_target(target)], anew=True)
    return {**tried}


def cache(missing: list[Missing]) -> Section:
    """The folder of compiled model directories."""
    from ingot.cache.artifacts import Artifacts
    from ingot.settings import settings

    try:
        folder = settings().cache_dir
    except IngotError as error:
        missing.append(Missing("cache", f"{error.found}\n{error.hint}"))
        return {"folder": None}
    try:
        artifacts = len(Artifacts(folder).entries())
    except OSError as error:
        artifacts = None
        remedy = "Set INGOT_CACHE to a folder that can be read and written."
        missing.append(Missing("cache", f"{folder} cannot be read: {error.strerror}\n{remedy}"))
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    return {
        "folder": folder,
        "artifacts": artifacts,
        "size_bytes": _size(folder),
        "free_bytes": shutil.disk_usage(there).free,
    }


def versions(missing: list[Missing]) -> Section:
    """Versions of ingot, artifacts that it reads, Python and packages; None: not installed."""
    from ingot.artifact.manifest import FORMAT_VERSION
    from ingot.artifact.select import ABI

    packages = {name: _version(name) for name in COMPILING}
    missing += [Missing(name, how_to_install(name)) for name in COMPILING if packages[name] is None]
    return {
        "ingot": __version__,
        "artifact_format": ".".join(str(part) for part in FORMAT_VERSION),
        "kernel_interface": ABI,
        "python": f"{platform.python_version()}, {sys.executable}",
        **packages,
    }


def _size(folder: Path) -> int:
    """Bytes of the files below a folder. Other processes may remove some meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):  # passes over what it cannot read
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _shown(name: str, value: Any) -> tuple[str, str]:
    """A name and its value as people read them."""
    label = name.removesuffix(BYTES).replace("_", " ")
    if value is None:
        return label, "none"
    if name.endswith(BYTES):
        return label, format_bytes(value)
    return label, ", ".join(value) if isinstance(value, list) else str(value)
