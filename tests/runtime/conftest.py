"""The fake artifact, written once and only read by the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ingot.runtime.llm import LLM
from tests.runtime import sampling_support
from tests.runtime.fake_model import write_fake


@pytest.fixture(scope="session")
def fake_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake(tmp_path_factory.mktemp("fake") / "fake.ingot")


@pytest.fixture(autouse=True, scope="module")
def _no_kernels_stay_open() -> Iterator[None]:
    yield
    sampling_support.close_kernels()


@pytest.fixture
def llm(fake_artifact: Path) -> Iterator[LLM]:
    with LLM(fake_artifact) as model:
        yield model
