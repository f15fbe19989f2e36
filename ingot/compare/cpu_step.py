"""Runs the kernels of a CPU target as they were compiled, on memory that can be looked into."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ingot.artifact.plan import Buffer, Plan, arrays_of
from ingot.artifact.tensors import ALIGNMENT
from ingot.compare.seen import Seen, Watching, copied
from ingot.compare.steps import fill
from ingot.compiler.interpret import Step, Value
from ingot.errors import InternalError
from ingot.runtime.arrays import StepInputs
from ingot.runtime.devices.cpu_kernels import (
    Kernels,
    ModelStruct,
    Watcher,
    pointers,
    step_struct,
)
from ingot.runtime.devices.memory import Region, align
from ingot.targets.cpu.unpack import pack_state, unpack_state
from ingot.targets.cpu.work import work_of

POISON = 0xFF  # NaN in every float: what is read before it is written shows


class CpuStep:
    """A model of one thread, whose arena and caches are at hand.

    Args:
        plan: the placed plan that the kernels were generated from.
        code: the bytes of kernels.so, and its name.
        weights: the address of each weight, in the order of the plan. Whoever gives them keeps
            them alive. 0 will do for weights of kernels that do not run.
        num_pages: of the caches, which start as zeros.
    """

    def __init__(
        self, plan: Plan, code: bytes, name: str, weights: Sequence[int], num_pages: int
    ) -> None:
        self.plan, self.work = plan, work_of(plan)
        self.arena = _memory(plan.memory.arena_bytes)
        self.arena.fill_(POISON)
        self.caches = {
            state.name: [_memory(size) for size in sizes]
            for state, sizes in _sizes(plan, num_pages)
        }
        (output,) = plan.of_kind("output")
        limits = plan.limits
        self.rows = torch.full((limits.bound(output.shape[0]), output.columns), torch.nan)
        self.inputs = StepInputs(plan)
        self._values: dict[str, Tensor] = {}
        self._kernels = Kernels(code, name)
        arrays = [array for each in self.caches.values() for array in each]
        model = ModelStruct(arena=self.arena.data_ptr(), num_pages=num_pages, num_threads=1)
        model.arrays = pointers(weights), pointers([a.data_ptr() for a in arrays])
        model.weights, model.caches = (ctypes.addressof(array) for array in model.arrays)
        self._kernels.open(model)

    def run(self, inputs: Mapping[str, Tensor]) -> list[Seen]:
        """Runs a step; returns what every kernel was given and what it left."""
        watching = Watching(self.work, self.value)
        self._run(inputs, watching.watch)
        return watching.seen

    def run_alone(
        self, number: int, inputs: Mapping[str, Tensor], given: Mapping[str, Value]
    ) -> dict[str, Value]:
        """Runs one kernel of a step on what it is given, by the names of `Seen.before`; returns
        what it left."""
        self._values = dict(inputs)
        for name, value in given.items():
            self._put(name, value)
        self._run(inputs, lambda kernel: kernel == number)
        work = self.work[number]
        return {name: self.value(name) for name in (*work.writes, *sorted(work.mutated))}

    def value(self, name: str) -> Value:
        """Copies what lies in a temporary, a state or the output now."""
        buffer = self.plan.buffer(name)
        if buffer.kind == "state":
            return unpack_state(self.plan, buffer, self.caches[name])
        if buffer.kind == "output":
            return self.rows[: self.inputs.num_results].clone()
        found = Step(self.plan, _none, self._values, {}, self.arena).memory(buffer)
        return copied(found)

    def _put(self, name: str, value: Value) -> None:
        """Writes a temporary or a state where the kernels look for it."""
        buffer = self.plan.buffer(name)
        if buffer.kind == "state":
            packed = pack_state(self.plan, buffer, value)
            for array, part in zip(self.caches[name], packed, strict=True):
                array.copy_(part.flatten().view(torch.uint8))
        else:
            Step(self.plan, _none, self._values, {}, self.arena).store(buffer, value)

    def close(self) -> None:
        self._kernels.close()

    def _run(self, inputs: Mapping[str, Tensor], watcher: Watcher) -> None:
        self._values = dict(inputs)
        fill(self.inputs, inputs)
        step = step_struct(self.inputs, [self.rows.data_ptr()])
        times = np.zeros(len(self.work) + 1, np.int64)
        code = self._kernels.run_timed(step, times.ctypes.data, watcher)
        if code:
            raise InternalError(f"the kernels refused a step with code {code}")


def _memory(nbytes: int) -> Tensor:
    """Zeroed bytes, aligned for kernels."""
    region = Region(align(max(nbytes, 1), ALIGNMENT), "the step")
    data = np.frombuffer(region.map, np.uint8, nbytes, region.offset)  # it keeps the map
    return torch.from_numpy(data)


def _sizes(plan: Plan, num_pages: int) -> list[tuple[Buffer, list[int]]]:
    """Each state with the bytes of its arrays."""
    arrays = iter(plan.state_arrays())
    return [
        (state, [num_pages * next(arrays).nbytes for _ in arrays_of(state.format, (0,))])
        for state in plan.of_kind("state")
    ]


def _none(buffer: Buffer) -> Value:
    raise InternalError(f"{buffer.name} is read by no kernel here")
