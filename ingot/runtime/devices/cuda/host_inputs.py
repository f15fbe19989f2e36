"""The host's copy of the inputs of a step, in memory that the device copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ingot.artifact.plan import Limits
from ingot.artifact.spec import Array
from ingot.runtime.arrays import StepInputs
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.cuda.memory import Memory


class HostInputs:
    """The inputs of one step: the engine may fill its own arrays anew while these go up."""

    def __init__(
        self, driver: Driver, memory: Memory, inputs: Sequence[Array], limits: Limits
    ) -> None:
        self._driver = driver
        self._memory = memory
        self._inputs = inputs
        self._copies = {each.name: _host_array(driver, each, limits) for each in inputs}

    def upload(self, inputs: StepInputs, sizes: Mapping[str, int]) -> None:
        """Queues the copies of a step of those sizes to the device."""
        for array in self._inputs:
            used = inputs[array.name][: sizes[str(array.shape[0])]]
            if used.size:
                copied = self._copies[array.name][: len(used)]
                copied[:] = used
                self._driver.upload(self._memory.array(array.name), copied)


def _host_array(driver: Driver, array: Array, limits: Limits) -> npt.NDArray[Any]:
    shape = [limits.bound(dim) for dim in array.shape]
    nbytes = prod(shape) * np.dtype(array.dtype).itemsize
    return driver.host_memory(nbytes).view(array.dtype).reshape(shape)


def pad(inputs: StepInputs, bucket: int) -> None:
    """Fills a decode up with sequences that have no token, and tokens that nobody stores."""
    count = inputs.num_seqs
    rest = slice(count, bucket)
    inputs["tokens"][rest] = inputs["positions"][rest] = inputs[inputs.rows][rest] = 0
    if "slots" in inputs:
        inputs["slots"][rest] = -1
    inputs["spans"][rest] = count, count, 0
    inputs.num_tokens = inputs.num_seqs = inputs.num_rows = bucket
