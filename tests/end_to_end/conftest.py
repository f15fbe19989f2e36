"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ingot.compiler import compile as compiler
from tests.end_to_end.support import CachedBuild


@pytest.fixture(scope="session", autouse=True)
def _builds_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Models that differ in values alone have the same source, which is built once."""
    real = compiler.build
    compiler.build = CachedBuild(real, tmp_path_factory.mktemp("builds"))
    yield
    compiler.build = real
