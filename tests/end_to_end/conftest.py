"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.end_to_end.support import Compile, Compiled, compile_case
from tests.support.made_once import made_once


@pytest.fixture(scope="session")
def compiled() -> Compiled:
    """The model directory of a case, and the artifact compiled from it, once a test run."""

    def compiled(case: Compile) -> tuple[Path, Path]:
        name = f"case-{hashlib.sha256(repr(case).encode()).hexdigest()}"
        place = made_once(name, lambda folder: compile_case(case, folder))
        return place / "model", place / "model.ingot"

    return compiled
