from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime import sampling_support


@pytest.fixture(autouse=True, scope="module")
def _no_kernels_stay_open() -> Iterator[None]:
    yield
    sampling_support.close_kernels()
