"""The C++ compiler's work, shared by all compiles of a session."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingot.artifact.lock import file_lock
from ingot.artifact.target import Target
from ingot.targets.cpu import toolchain

REAL = toolchain.build


@dataclass(frozen=True)
class BuildOnce:
    """The real build of a step, run once for every different source, compiler and target: models
    that differ in values alone share it, whichever process asks first."""

    folder: Path

    def __call__(
        self, source_dir: Path, out: Path, target: Target, flags: tuple[str, ...] = ()
    ) -> None:
        command = (*toolchain.find_compiler(), target.name, *flags)
        text = (source_dir / "step.cpp").read_bytes() + " ".join(command).encode()
        kept = self.folder / f"{hashlib.sha256(text).hexdigest()}.so"
        with file_lock(kept.with_suffix(".lock")):
            if not kept.exists():
                REAL(source_dir, out, target, flags)
                shutil.copyfile(out, kept)
        shutil.copyfile(kept, out)


def build_once(folder: Path) -> None:
    """From now on this process builds so."""
    toolchain.build = BuildOnce(folder)


@contextmanager
def built_once(folder: Path) -> Iterator[None]:
    """What is compiled meanwhile is built so. Other tests hand the compiler sources and flags of
    their own, and must meet the real one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "build", BuildOnce(folder))
        yield
