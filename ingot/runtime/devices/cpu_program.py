"""A program of a CPU target: its kernels, its temporaries, and the rows that it returns."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from ingot.artifact.plan import Plan
from ingot.artifact.reader import Artifact
from ingot.runtime.arrays import Float32, StepInputs
from ingot.runtime.devices.cpu_kernels import Kernels, ModelStruct, pointers, step_struct
from ingot.runtime.devices.memory import Region
from ingot.runtime.executor import outputs_of


class CpuProgram:
    """A program, loaded. It shares weights and states with the other programs of its artifact.

    Attributes:
        inputs: the arrays to fill before `start`; see `Executor`.
        columns: of a row of each output, by its name.
    """

    def __init__(self, artifact: Artifact, name: str) -> None:
        self._entry = artifact.target.programs[name]
        self._sha256 = artifact.manifest.files[self._entry.plan].sha256
        self.plan: Plan = artifact.plan_of(artifact.target, name)
        self.columns = outputs_of(self.plan, self._entry.plan)
        self.inputs = StepInputs(self.plan, name), StepInputs(self.plan, name)
        self.kernels: Kernels | None = None
        self.regions: list[Region] = []
        self._rows: dict[str, Float32] = {}
        try:
            self._arena = self._region(self.plan.memory.arena_bytes, "the arena").address
            self._rows = {name: self._array(name, count) for name, count in self.columns.items()}
            addresses = [rows.ctypes.data for rows in self._rows.values()]
            self._steps = {id(inputs): step_struct(inputs, addresses) for inputs in self.inputs}
            self.kernels = Kernels(artifact.read(self._entry.kernels), self._entry.kernels)
        except BaseException:
            self.close()
            raise

    def open(self, weights: Sequence[int], states: Sequence[int], model: ModelStruct) -> Kernels:
        """Starts the threads, over weights and states at these addresses; `model` has the rest.

        Raises ArtifactError for kernels of another plan, and ResourceError.
        """
        assert self.kernels is not None
        self.kernels.check_plan(self._sha256)
        model.arena = self._arena
        model.arrays = pointers(weights), pointers(states)
        model.weights, model.caches = (ctypes.addressof(array) for array in model.arrays)
        self.kernels.open(model)
        return self.kernels

    def start(
        self, inputs: StepInputs, *, beside: bool, clock: npt.NDArray[np.int64] | None
    ) -> Callable[[], int]:
        """Begins a step, or leaves that to what is returned, which waits for its code."""
        assert self.kernels is not None
        step = self._steps[id(inputs)]
        for name, size in inputs.sizes().items():
            setattr(step, name, size)
        if clock is not None:  # a step that is timed runs alone
            return partial(self.kernels.run_timed, step, clock.ctypes.data)
        if not beside:
            return partial(self.kernels.run, step)
        self.kernels.submit(step)
        return self.kernels.wait

    def rows(self, count: int) -> dict[str, Float32]:
        """Rows that the last step returned, by output: [count, columns] each."""
        return {name: rows[:count] for name, rows in self._rows.items()}

    def close(self) -> None:
        if self.kernels is not None:
            self.kernels.close()
            self.kernels = None
        self._rows.clear()  # they look into regions
        for region in self.regions:
            region.close()
        self.regions.clear()

    def _array(self, name: str, columns: int) -> Float32:
        """Memory for the rows of an output."""
        most = self.plan.limits.bound(self.plan.buffer(name).shape[0])
        return self._region(most * columns * 4, name).floats(most, columns)

    def _region(self, nbytes: int, what: str) -> Region:
        self.regions.append(Region(nbytes, what))
        return self.regions[-1]
