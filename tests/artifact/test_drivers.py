"""Which drivers load binaries, in numbers and in words."""

from __future__ import annotations

import pytest

from ingot.artifact.architectures import ARCHITECTURES
from ingot.artifact.drivers import DRIVERS, cuda_of, cuda_text, driver_text, least_cuda


@pytest.mark.parametrize(
    ("release", "level", "least", "said"),
    [
        ("12.9.86", "sm_80", 12_000, "driver 525 or newer"),
        ("12.8.93", "sm_90", 12_000, "driver 525 or newer"),
        ("12.9.86", "sm_100", 12_080, "driver 570 or newer"),
        ("12.9.86", "sm_103", 12_090, "driver 575 or newer"),
        ("13.4.59", "sm_80", 13_000, "driver 580 or newer"),
        ("13.4.59", "sm_120", 13_000, "driver 580 or newer"),
        ("14.1.0", "sm_90", 14_000, "a driver of CUDA 14.0 or newer"),
    ],
)
def test_the_least_driver(release: str, level: str, least: int, said: str) -> None:
    found = least_cuda(release, ARCHITECTURES[level])
    assert (found, driver_text(found)) == (least, said)


def test_every_driver_that_wide_binaries_need_has_a_number() -> None:
    for architecture in ARCHITECTURES.values():
        assert least_cuda("12.9.86", architecture) in DRIVERS


def test_versions_of_tools_are_counted_as_drivers_count() -> None:
    assert [cuda_of(each) for each in ("12.9.86", "13.4", "13")] == [12_090, 13_040, 13_000]
    assert cuda_text(12_080) == "CUDA 12.8"
