"""The C++ compiler begins before PyTorch is imported, with what every model of a target needs.

What it makes lies in the cache of kernels, where the compile finds it. What goes wrong here is told
there: the compile tries its tools and builds all that it does not find.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ingot.artifact.host import host_flags
from ingot.artifact.target import Target, native_target
from ingot.errors import UsageError
from ingot.targets import kept
from ingot.targets.compilers import Builder
from ingot.targets.cpu import toolchain
from ingot.targets.cpu.functions import INTERFACE
from ingot.targets.cpu.kept_objects import compile_once


@contextmanager
def compilers_begun(names: Sequence[str]) -> Iterator[None]:
    """Compiles for those targets that are CPUs, beside the caller, as far as there is a cache.

    Leaving it by an error ends the compilers.
    """
    with Builder() as compiler:
        for target in cpu_targets(names) if _has_cache() else ():
            compiler.submit(build_common, target)
        yield


def cpu_targets(names: Sequence[str]) -> Iterator[Target]:
    """The CPUs among targets. Names that are none are refused by the compile."""
    for name in names:
        try:
            target = native_target(host_flags()) if name == "cpu:native" else Target.parse(name)
        except UsageError:
            continue
        if target.kind == "cpu":
            yield target


def build_common(target: Target) -> None:
    """Builds what `check_tools` and `prepare` ask for."""
    with tempfile.TemporaryDirectory(prefix="ingot-early-") as folder:
        toolchain.try_tools(Path(folder), target, compile_once)
        for name, text in INTERFACE.items():
            Path(folder, name).write_text(text)
            compile_once(Path(folder, name), Path(folder, "unit.o"), target)


def _has_cache() -> bool:
    try:
        kept.opened_folder()
    except (OSError, UsageError):
        return False
    return True
