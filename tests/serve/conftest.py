"""Models that the tests of the server share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.fake_model import DANGER, KERNELS, LIMITS, kernels, write_fake


@pytest.fixture(scope="session")
def fake_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact around kernels made by hand; see tests/runtime/fake_model.py."""
    return write_fake(tmp_path_factory.mktemp("fake") / "fake.ingot")


@pytest.fixture(scope="session")
def dangerous_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with slow steps, which crash or hang where a prompt begins with a certain token.

    Its context is so long that a job goes on until it is ended: see ENDLESS in tests/serve/jobs.py.
    """
    path = tmp_path_factory.mktemp("danger") / "danger.ingot"
    limits = replace(LIMITS, max_model_len=8192)
    return write_fake(path, limits=limits, files={KERNELS: kernels(*DANGER)})
