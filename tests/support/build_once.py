"""The C++ compiler's work, shared by all compiles of a test run."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingot.artifact.target import Target
from ingot.targets.cpu import toolchain
from tests.support.made_once import made_once

REAL = toolchain.compile_unit


def compile_unit(source: Path, out: Path, target: Target, flags: tuple[str, ...] = ()) -> None:
    """The real compiler, run once for every different source, compiler and target: models that
    differ in values alone share all of it, and all models the C interface."""
    command = (*toolchain.find_compiler(), target.name, *flags)
    text = source.read_bytes() + " ".join(command).encode()
    built = made_once(
        f"object-{hashlib.sha256(text).hexdigest()}",
        lambda place: REAL(source, place / "unit.o", target, flags),
    )
    shutil.copyfile(built / "unit.o", out)


@contextmanager
def built_once() -> Iterator[None]:
    """What is compiled meanwhile is built so. Other tests hand the compiler sources and flags of
    their own, and must meet the real one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "compile_unit", compile_unit)
        yield
