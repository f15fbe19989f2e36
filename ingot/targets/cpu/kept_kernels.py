"""Libraries that were built before: equal sources, compilers and flags give equal bytes.

A model whose weights have changed, or that is compiled again after a mistake, spares the C++
compiler's seconds.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from contextlib import suppress
from pathlib import Path

from ingot.artifact.target import Target
from ingot.errors import UsageError
from ingot.settings import settings
from ingot.targets.compilers import identity
from ingot.targets.cpu import toolchain

MOST = 64  # libraries of about 300 KB; those unused for longest go first


def build_once(source_dir: Path, out: Path, target: Target) -> None:
    """As `toolchain.build`, unless the same was built before."""
    try:
        folder = settings().kernels_dir
        folder.mkdir(parents=True, exist_ok=True)
        key = _key(source_dir, target)
    except (OSError, UsageError, subprocess.TimeoutExpired):  # a compile needs no cache
        return toolchain.build(source_dir, out, target)
    if not _take(folder, key, out):
        toolchain.build(source_dir, out, target)
        with suppress(OSError):  # a full disk is told by what needs the room
            _keep(folder, key, out.read_bytes())


def _key(source_dir: Path, target: Target) -> str:
    """Changes with everything that the compiler's output depends on, and with nothing else."""
    anywhere = Path("source")
    command = toolchain.command_line(anywhere, anywhere / "kernels.so", target)
    text = [*command, *identity(toolchain.find_compiler()), *settings().compiler_paths]
    content = hashlib.sha256("\0".join(map(str, text)).encode())
    for path in (source_dir / "step.cpp", *sorted(toolchain.KERNELS.glob("*.h"))):
        content.update(hashlib.sha256(path.read_bytes()).digest())
    return content.hexdigest()


def _take(folder: Path, key: str, out: Path) -> bool:
    """Copies what is kept under a key to `out`, if it is there and whole."""
    for path in folder.glob(f"{key}-*.so"):
        with suppress(OSError):  # another process has removed it
            data = path.read_bytes()
            if path.name == _name(key, data):
                os.utime(path)
                out.write_bytes(data)
                out.chmod(0o755)
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
    kept = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in kept[MOST:]:
        path.unlink(missing_ok=True)


def _name(key: str, data: bytes) -> str:
    """The name under which a library is kept; it tells whether the file is whole."""
    return f"{key}-{hashlib.sha256(data).hexdigest()[:16]}.so"
