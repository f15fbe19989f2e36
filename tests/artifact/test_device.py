"""Which device an artifact is opened for, on hosts with GPUs and without a driver."""

from __future__ import annotations

import pytest

from ingot.artifact import device
from ingot.artifact.device import flags_and_gpu
from ingot.artifact.gpu import Gpu
from ingot.artifact.host import host_flags
from ingot.errors import IncompatibleHostError, UsageError

BOTH = ("cpu:portable", "cuda:sm_90")


def shown(monkeypatch, *gpus, driver=True):
    """Replaces the driver by one that shows those GPUs; returns how often it was asked."""
    asked = []

    def find(library=None):
        asked.append(library)
        return gpus

    monkeypatch.setattr(device, "load_library", lambda: object() if driver else None)
    monkeypatch.setattr(device, "find_gpus", find)
    return asked


def test_auto_takes_the_first_gpu_that_runs_a_target(monkeypatch):
    shown(monkeypatch, Gpu(0, (8, 0)), Gpu(1, (9, 0)), Gpu(2, (9, 0)))
    flags, number = flags_and_gpu("auto", BOTH)
    assert number == 1 and "sm_90" in flags and host_flags() <= flags


def test_auto_takes_the_cpu_where_no_gpu_fits(monkeypatch):
    shown(monkeypatch, Gpu(0, (12, 0)))
    assert flags_and_gpu("auto", BOTH) == (host_flags(), 0)


def test_auto_takes_the_cpu_where_there_is_no_driver(monkeypatch):
    shown(monkeypatch, driver=False)
    assert flags_and_gpu("auto", BOTH) == (host_flags(), 0)


def test_the_driver_is_asked_only_where_it_matters(monkeypatch):
    asked = shown(monkeypatch, Gpu(0, (9, 0)))
    flags_and_gpu("auto", ("cpu:portable",))
    flags_and_gpu("cpu", BOTH)
    assert not asked
    flags_and_gpu("auto", BOTH)
    assert asked


def test_a_gpu_that_is_named_is_taken_whatever_the_artifact_has(monkeypatch):
    shown(monkeypatch, Gpu(0, (8, 9)), Gpu(1, (12, 0)))
    assert flags_and_gpu("cuda", ()) == ({"sm_80"}, 0)
    assert flags_and_gpu("cuda:1", ()) == ({"sm_120"}, 1)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    shown(monkeypatch, Gpu(0, (9, 0)))
    with pytest.raises(IncompatibleHostError, match="no GPU cuda:1: the NVIDIA driver shows 1"):
        flags_and_gpu("cuda:1", BOTH)


def test_without_a_driver_that_is_what_is_told(monkeypatch):
    shown(monkeypatch, driver=False)
    with pytest.raises(IncompatibleHostError, match=r"no NVIDIA driver is installed \(libcuda"):
        flags_and_gpu("cuda", BOTH)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:1\n", "CUDA", "cuda:1000", 0])
def test_an_unknown_device_is_refused(name):
    with pytest.raises(UsageError, match="device is"):
        flags_and_gpu(name, BOTH)
