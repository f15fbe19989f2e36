"""A program beside the step, on the same device, over the same weights and pages."""

from __future__ import annotations

from itertools import cycle

import numpy as np

from ingot.artifact.reader import Artifact
from ingot.runtime.arrays import Float32, StepInputs
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.cuda.host_inputs import HostInputs
from ingot.runtime.devices.cuda.memory import Memory
from ingot.runtime.devices.cuda.program import load_program, read_built
from ingot.runtime.executor import outputs_of


class BesideProgram:
    """A program that draws nothing: its rows are copied to the host.

    Attributes:
        inputs: the arrays to fill before `queue`; see `Executor`.

    Raises ResourceError where the device has no room for its temporaries.
    """

    def __init__(self, driver: Driver, artifact: Artifact, name: str, memory: Memory) -> None:
        entry = artifact.target.programs[name]
        self.plan = artifact.plan_of(artifact.target, name)
        outputs = outputs_of(self.plan, entry.plan)
        spec, limits = self.plan.spec, self.plan.limits
        self.inputs = StepInputs(self.plan, name), StepInputs(self.plan, name)
        built = read_built(artifact, self.plan, entry)
        self._memory = memory.beside(driver, artifact, self.plan, built.launches)
        self._program = load_program(driver, artifact, entry, built, self._memory)
        self._rows: dict[str, Float32] = {
            output: driver.host_memory(4 * limits.max_logit_rows * columns)
            .view(np.float32)
            .reshape(-1, columns)
            for output, columns in outputs.items()
        }
        self._sides = cycle(HostInputs(driver, self._memory, spec.inputs, limits) for _ in range(2))

    def queue(
        self, driver: Driver, inputs: StepInputs, sizes: dict[str, int]
    ) -> dict[str, Float32]:
        """Queues a step, and the copies of its rows to what this returns, by output."""
        next(self._sides).upload(inputs, sizes)
        self._program.launch(sizes)
        found = {name: rows[: inputs.num_rows] for name, rows in self._rows.items()}
        for name, rows in found.items() if inputs.num_rows else ():
            driver.download(rows, self._memory.array(name))
        return found
