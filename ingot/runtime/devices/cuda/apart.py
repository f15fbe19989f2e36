"""Runs a step kernel by kernel, for those who look at what lies between."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ingot.artifact.launches import LaunchArgument
from ingot.runtime.arrays import StepInputs
from ingot.runtime.devices.cuda.executor import CudaExecutor


def run_apart(executor: CudaExecutor, inputs: StepInputs, before: Callable[[int], object]) -> None:
    """Runs a step by its launches, none of which overlaps one of another kernel.

    Calls `before` with the number of each kernel of the plan, and at the end with how many there
    are. No token is drawn.
    """
    count = len(executor._plan.kernels)
    with executor._running() as driver:
        sizes = executor._sizes(inputs)
        next(executor._sides).inputs.upload(inputs, sizes)
        driver.synchronize()
        for group in range(count):
            before(group)
            executor._program.launch_group(group, sizes)
            driver.synchronize()
    before(count)


def read(executor: CudaExecutor, place: LaunchArgument, nbytes: int) -> npt.NDArray[np.uint8]:
    """Bytes of the device's memory, once all that was queued is done."""
    with executor._running() as driver:
        found = np.empty(nbytes, np.uint8)
        driver.download(found, executor._memory.address(place))
        driver.synchronize()
    return found
