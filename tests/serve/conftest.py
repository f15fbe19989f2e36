"""Models that the tests of the server share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.fake_model import DANGER, KERNELS, kernels, write_fake


@pytest.fixture(scope="session")
def fake_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact around kernels made by hand; see tests/runtime/fake_model.py."""
    return write_fake(tmp_path_factory.mktemp("fake") / "fake.ingot")


@pytest.fixture(scope="session")
def dangerous_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with slow steps, which crash or hang where a prompt begins with a certain token."""
    files = {KERNELS: kernels(*DANGER)}
    return write_fake(tmp_path_factory.mktemp("danger") / "danger.ingot", files=files)
