"""Runs an artifact's kernels as they were compiled, and holds each against the references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ingot.artifact.manifest import TargetEntry
from ingot.artifact.plan import Plan
from ingot.artifact.reader import Artifact
from ingot.artifact.target import kind_of_name
from ingot.compare.alone import errors_against, expected
from ingot.compare.cpu_step import CpuStep
from ingot.compare.cuda_step import CudaStep
from ingot.compare.differences import Difference, difference, parts
from ingot.compare.seen import Seen
from ingot.compare.steps import Steps
from ingot.compare.stored import StoredWeights
from ingot.compiler.interpret import Value
from ingot.ops.registry import KernelTolerance
from ingot.targets.work import Work

SAME = KernelTolerance(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class KernelError:
    """A kernel that left something else than it should have; `wanted` is what."""

    seen: Seen
    step: str
    difference: Difference
    wanted: Mapping[str, Value]
    overwritten: bool = False  # between kernels: what it was given is not what was left for it


@dataclass(frozen=True, slots=True)
class WatchedKernels:
    """The kernels of a target, with what they were given and what they left in each step.

    `code` are the bytes of kernels.so; empty for a target that a reproducer cannot run.
    """

    target: str
    plan: Plan
    stored: StoredWeights
    steps: Steps
    seen: Mapping[str, Sequence[Seen]]
    code: bytes = b""

    @property
    def work(self) -> Sequence[Work]:
        return [seen.work for seen in self.seen["prefill"]]

    def errors(self, number: int) -> Iterator[KernelError]:
        """Yields a kernel's errors in either step: what was overwritten before it ran, and what it
        made of what it was given."""
        for name, inputs in self.steps.parts.items():
            seen = self.seen[name][number]
            for buffer, found, left in self._overwritten(name, number):
                yield KernelError(seen, name, found, {buffer: left}, overwritten=True)
            wanted = expected(seen, inputs, self.stored.read)
            for found in errors_against(seen, wanted):
                if found.is_beyond:
                    yield KernelError(seen, name, found, wanted)

    def _overwritten(self, step: str, number: int) -> Iterator[tuple[str, Difference, Value]]:
        """Finds inputs of a kernel that are not what their maker left."""
        for name, given in self.seen[step][number].before.items():
            left = self._left(step, number, name)
            for (suffix, one), (_, other) in zip(
                parts(given), parts(given if left is None else left), strict=True
            ):
                found = difference(f"{name}{suffix}", one, other, SAME, by_rows=False)
                if found.is_beyond and left is not None:
                    yield name, found, left

    def _left(self, step: str, number: int, name: str) -> Value | None:
        """Finds what the last kernel before that one that wrote into a buffer left there."""
        for seen in reversed(self.seen[step][:number]):
            if name in seen.after:
                return seen.after[name]
        return None


def run_kernels(artifact: Artifact, entry: TargetEntry, steps: Steps) -> WatchedKernels:
    """Runs the steps on the artifact's target, as compiled. Raises what opening it raises."""
    plan = artifact.plan_of(entry)
    stored = StoredWeights(artifact, entry, plan)
    code = artifact.read(entry.main.kernels) if kind_of_name(entry.name) == "cpu" else b""
    step: CpuStep | CudaStep
    if code:
        addresses = stored.addresses()
        step = CpuStep(plan, code, entry.main.kernels, addresses, steps.num_pages)
    else:
        longest = max(map(len, steps.prompts))
        step = CudaStep(artifact, plan, steps.num_pages, longest)
    try:
        seen = {name: step.run(inputs) for name, inputs in steps.parts.items()}
    finally:
        step.close()
    return WatchedKernels(entry.name, plan, stored, steps, seen, code)


def dense(value: Value) -> Tensor:
    """Numbers that a value stands for, float32."""
    return value.float() if isinstance(value, Tensor) else value.dequantize()


def as_numbers(value: Value) -> Tensor:
    """Numbers of a value as [rows, columns]."""
    return dense(value).reshape(value.shape[0], -1)
