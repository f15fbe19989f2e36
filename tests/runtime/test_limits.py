"""Limits as values, and measured by the kernels of a real artifact."""

from __future__ import annotations

import pytest

from ingot.artifact.cost import Cost
from ingot.artifact.reader import Artifact
from ingot.errors import ResourceError
from ingot.runtime.limits import ARITHMETIC, LimitsMeter, MachineLimits


def limits(read: float, **peaks: float) -> MachineLimits:
    return MachineLimits(threads=2, read_bytes_per_second=read, operations_per_second=peaks)


def test_the_slower_of_memory_and_arithmetic_bounds():
    machine = limits(10.0, int8=100.0, float32=50.0)
    cost = Cost(weight_bytes=15, kv_bytes=5, operations={"int8": 100, "float32": 25})
    assert machine.memory_seconds(cost) == 2.0
    assert machine.arithmetic_seconds(cost) == 1.5
    assert machine.seconds(cost) == 2.0
    assert machine.seconds(Cost(operations={"int8": 300})) == 3.0


def test_the_best_of_two_is_taken_figure_by_figure():
    best = limits(10.0, int8=1.0, float32=9.0).best(limits(5.0, int8=2.0, float32=8.0))
    assert best == limits(10.0, int8=2.0, float32=9.0)


def test_an_artifact_measures_its_host(shakespeare_artifact):
    with LimitsMeter(Artifact.open(shakespeare_artifact), 0, num_threads=1) as meter:
        found = meter.measure()
    assert found.threads == 1
    assert found.read_bytes_per_second > 0
    assert set(found.operations_per_second) == set(ARITHMETIC)
    assert min(found.operations_per_second.values()) > 0


def test_no_threads_are_refused(shakespeare_artifact):
    artifact = Artifact.open(shakespeare_artifact)
    with LimitsMeter(artifact, 0, num_threads=-1) as meter, pytest.raises(ResourceError):
        meter.measure()
