"""Runs the kernels of a CUDA target one after the other, on memory that can be looked into."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ingot.artifact.formats import stored_bytes
from ingot.artifact.launches import LaunchArgument
from ingot.artifact.plan import Plan, arrays_of, scales_offset
from ingot.artifact.reader import Artifact
from ingot.compare.seen import Seen, Watching, copied
from ingot.compare.steps import fill
from ingot.compiler.interpret import Step, Value
from ingot.errors import ResourceError
from ingot.runtime.devices import open_executor
from ingot.runtime.devices.cuda.apart import read, run_apart
from ingot.runtime.devices.cuda.executor import CudaExecutor
from ingot.targets.cuda.unpack import unpack_state
from ingot.targets.work import Work


class CudaStep:
    """A model on a device, whose arena and caches are at hand. The artifact's target is the one
    that runs, with pages for steps of these.

    Raises what opening an artifact raises.
    """

    def __init__(self, artifact: Artifact, plan: Plan, num_pages: int, longest: int) -> None:
        pages = (num_pages + 1) * sum(plan.page_sizes()) + 64 * len(plan.page_sizes())
        executor = open_executor(
            artifact,
            max_model_len=min(longest + plan.limits.page_size, plan.limits.max_model_len),
            kv_cache_bytes=pages if plan.rewinds else None,
        )
        assert isinstance(executor, CudaExecutor), "the target is one of GPUs"
        self._executor = executor
        self.plan, self.work = plan, [Work(plan, group) for group in plan.kernels]
        self._arena = torch.empty(plan.memory.arena_bytes, dtype=torch.uint8)
        self._inputs: dict[str, Tensor] = {}
        if executor.num_pages < num_pages:
            executor.close()
            raise ResourceError(
                f"the GPU has room for {executor.num_pages} pages, and the prompts need "
                f"{num_pages}",
                hint="Give shorter prompts.",
            )

    def run(self, inputs: Mapping[str, Tensor]) -> list[Seen]:
        """Runs a step; returns what every kernel was given and what it left."""
        self._inputs = dict(inputs)
        arrays = self._executor.inputs[0]
        fill(arrays, inputs)
        watching = Watching(self.work, self.value)
        run_apart(self._executor, arrays, watching.watch)
        return watching.seen

    def value(self, name: str) -> Value:
        """Copies what lies in a temporary, a state or the output now."""
        buffer = self.plan.buffer(name)
        if buffer.kind == "state":
            count = self._executor.num_pages if len(buffer.shape) == 4 else self._executor.num_slots
            kept = arrays_of(buffer.format, (count, *map(int, buffer.shape[1:])))
            sizes = (stored_bytes(dtype, count) for dtype, count in kept)
            return unpack_state(buffer, [self._read(name, n, s) for n, s in enumerate(sizes)])
        rows = self._executor.inputs[0].num_results
        if buffer.kind == "output":
            data = self._read(name, 0, rows * buffer.columns * 4)
            return data.view(torch.float32).view(rows, -1)
        step = Step(self.plan, lambda b: torch.empty(0), self._inputs, {}, self._arena)
        inner = [*map(int, buffer.shape[1:])]
        bound = (self.plan.limits.bound(buffer.shape[0]), *inner)
        at = buffer.offset
        for dtype, numbers in arrays_of(buffer.format, (step.size(buffer.shape[0]), *inner)):
            size = stored_bytes(dtype, numbers)
            self._arena[at : at + size] = self._read(name, 0, size, at - buffer.offset)
            at += scales_offset(buffer.format, bound)
        return copied(step.memory(buffer))

    def close(self) -> None:
        self._executor.close()

    def _read(self, name: str, array: int, nbytes: int, offset: int = 0) -> Tensor:
        place = LaunchArgument(buffer=name, array=array, offset=offset)
        return torch.from_numpy(read(self._executor, place, nbytes))
