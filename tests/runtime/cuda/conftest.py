"""The stand-in for the driver's library, built once a run."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.made_once import made_once

SOURCE = Path(__file__).with_name("fake_driver.c")


def _build(folder: Path) -> None:
    command = ["cc", "-shared", "-fPIC", "-w", str(SOURCE), "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, check=True)


@pytest.fixture(scope="session")
def fake_library_path() -> Path:
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    return made_once(f"fake-cuda-{digest}", _build) / "libcuda.so.1"


@pytest.fixture
def library(fake_library_path: Path) -> Iterator[ctypes.CDLL]:
    library = ctypes.CDLL(str(fake_library_path))
    library.fake_reset()
    library.fake_parameters.restype = ctypes.c_size_t
    yield library
    library.fake_reset()
