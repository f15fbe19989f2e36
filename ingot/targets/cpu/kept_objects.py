"""Object files that were compiled before: equal sources, compilers and flags give equal bytes.

A model whose weights have changed, or that is compiled again after a mistake, spares the C++
compiler's seconds; another model of the same target spares those of the C interface.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from contextlib import suppress
from pathlib import Path

from ingot.artifact.kernel_cache import kept_files
from ingot.artifact.target import Target
from ingot.errors import UsageError
from ingot.settings import settings
from ingot.targets.compilers import identity
from ingot.targets.cpu import toolchain

MOST = 256  # object files of about 100 KB; those unused for longest go first


def compile_once(source: Path, out: Path, target: Target, flags: tuple[str, ...] = ()) -> None:
    """As `toolchain.compile_unit`, unless the same was compiled before."""
    try:
        folder = settings().kernels_dir
        folder.mkdir(parents=True, exist_ok=True)
        key = _key(source, target, flags)
    except (OSError, UsageError, subprocess.TimeoutExpired):  # a compile needs no cache
        return toolchain.compile_unit(source, out, target, flags)
    if not _take(folder, key, out):
        toolchain.compile_unit(source, out, target, flags)
        with suppress(OSError):  # a full disk is told by what needs the room
            _keep(folder, key, out.read_bytes())


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


def _take(folder: Path, key: str, out: Path) -> bool:
    """Copies what is kept under a key to `out`, if it is there and whole."""
    for path in folder.glob(f"{key}-*.o"):
        with suppress(OSError):  # another process has removed it
            data = path.read_bytes()
            if path.name == _name(key, data):
                out.write_bytes(data)
                with suppress(OSError):  # a cache that this user may only read
                    os.utime(path)
                return True
            path.unlink()
    return False


def _keep(folder: Path, key: str, data: bytes) -> None:
    part = folder / f"{key}.{os.getpid()}.part"
    try:
        part.write_bytes(data)
        part.replace(folder / _name(key, data))
    finally:
        part.unlink(missing_ok=True)
    kept = sorted(kept_files(folder), key=_last_use, reverse=True)
    for path in kept[MOST:]:
        path.unlink(missing_ok=True)


def _last_use(path: Path) -> float:
    """Of a file that another process may have removed."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _name(key: str, data: bytes) -> str:
    """The name under which an object file is kept; it tells whether the file is whole."""
    return f"{key}-{hashlib.sha256(data).hexdigest()[:16]}.o"
