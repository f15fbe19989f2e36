"""What a run of tests makes once, whichever of its processes asks first."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from ingot.artifact.lock import file_lock
from tests.support.kept_builds import kernels_folder

FOLDER = "TESTS_BUILD_IN"  # the processes of a test run share its value; see tests/conftest.py


@cache
def shared_folder() -> Path:
    """Where this run keeps what it makes; one of its own outside of pytest."""
    return Path(os.environ.get(FOLDER) or tempfile.mkdtemp(prefix="ingot-tests-"))


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """The folder of that name, filled by `make(folder)` unless it is there. The name says by its
    content what is made, such as a hash of the source."""
    place, making = shared_folder() / name, shared_folder() / f"{name}.making"
    with file_lock(shared_folder() / f"{name}.lock"):
        if not place.exists():
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            make(making)
            making.rename(place)
    return place


def cache_folder(path: Path) -> Path:
    """A new cache of ingot's with no models in it, but with the kernels that tests have built."""
    path.mkdir()
    (path / "kernels").symlink_to(kernels_folder())
    return path
