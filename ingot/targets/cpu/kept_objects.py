"""Object files that were compiled before: equal sources, compilers and flags give equal bytes.

A model whose weights have changed, or that is compiled again after a mistake, spares the C++
compiler's seconds; another model of the same target spares those of the C interface.
"""

from __future__ import annotations

import hashlib
import subprocess
from contextlib import suppress
from pathlib import Path

from ingot.artifact.target import Target
from ingot.cache import store
from ingot.errors import UsageError
from ingot.settings import settings
from ingot.targets.compilers import alone, identity
from ingot.targets.cpu import toolchain

SUFFIX = ".o"


def compile_once(source: Path, out: Path, target: Target, flags: tuple[str, ...] = ()) -> None:
    """As `toolchain.compile_unit`, unless the same was compiled before."""
    try:
        folder = store.opened_folder()
        key = _key(source, target, flags)
    except (OSError, UsageError, subprocess.TimeoutExpired):  # a compile needs no cache
        toolchain.compile_unit(source, out, target, flags)
        return
    with alone(key):
        data = store.take(folder, key, SUFFIX)
        if data is not None:
            out.write_bytes(data)
            return
        toolchain.compile_unit(source, out, target, flags)
        with suppress(OSError):  # a full disk is told by what needs the room
            if _key(source, target, flags) == key:  # nobody has edited a header meanwhile
                store.keep(folder, key, out.read_bytes(), SUFFIX)


def _key(source: Path, target: Target, flags: tuple[str, ...]) -> str:
    """Changes with everything that the compiler's output depends on, and with nothing else."""
    anywhere = Path("source")
    command = toolchain.compile_command(anywhere / "unit.cpp", anywhere / "unit.o", target, flags)
    # Where ingot is installed is no part of what is built.
    parts = [part.replace(str(toolchain.KERNELS), "kernels") for part in command]
    text = [*parts, *identity(toolchain.find_compiler()), *settings().compiler_paths]
    content = hashlib.sha256("\0".join(map(str, text)).encode())
    for path in (source, *sorted(toolchain.KERNELS.glob("*.h"))):
        content.update(hashlib.sha256(path.read_bytes()).digest())
    return content.hexdigest()
