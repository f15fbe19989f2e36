"""Object files that were compiled before: equal sources, compilers and flags give equal bytes.

A model whose weights have changed, or that is compiled again after a mistake, spares the C++
compiler's seconds; another model of the same target spares those of the C interface.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

from ingot.artifact.target import Target
from ingot.cache.builds import Builds
from ingot.cache.store import content_of, key_of
from ingot.errors import UsageError
from ingot.settings import settings
from ingot.targets.compilers import alone, identity
from ingot.targets.cpu import toolchain

SUFFIX = ".o"


def compile_once(source: Path, out: Path, target: Target, flags: tuple[str, ...] = ()) -> None:
    """As `toolchain.compile_unit`, unless the same was compiled before."""
    try:
        builds = Builds.opened()
        key = _key(source, target, flags)
    except (OSError, UsageError, subprocess.TimeoutExpired):  # a compile needs no cache
        toolchain.compile_unit(source, out, target, flags)
        return
    with alone(key):
        data = builds.take(key, SUFFIX)
        if data is not None:
            out.write_bytes(data)
            return
        toolchain.compile_unit(source, out, target, flags)
        with suppress(OSError):  # a full disk is told by what needs the room
            if _key(source, target, flags) == key:  # nobody has edited a header meanwhile
                builds.keep(key, out.read_bytes(), SUFFIX)


def _key(source: Path, target: Target, flags: tuple[str, ...]) -> str:
    """Changes with everything that the compiler's output depends on, and with nothing else."""
    anywhere = Path("source")
    command = toolchain.compile_command(anywhere / "unit.cpp", anywhere / "unit.o", target, flags)
    # Where ingot is installed is no part of what is built.
    parts = {
        "command": [part.replace(str(toolchain.KERNELS), "kernels") for part in command],
        "compiler": [*identity(toolchain.find_compiler()), *settings().compiler_paths],
        "source": content_of(source),
        "headers": {path.name: content_of(path) for path in toolchain.KERNELS.glob("*.h")},
    }
    return key_of(parts)
