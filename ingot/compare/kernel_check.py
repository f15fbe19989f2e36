"""Runs an artifact's kernels as they were compiled, and holds each against the references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ingot.artifact.manifest import TargetEntry
from ingot.artifact.plan import Limits, Plan
from ingot.artifact.reader import Artifact
from ingot.artifact.target import kind_of_name
from ingot.compare.alone import errors_against, expected
from ingot.compare.cpu_step import CpuStep
from ingot.compare.cuda_step import CudaStep
from ingot.compare.differences import Difference, difference, parts
from ingot.compare.seen import Seen
from ingot.compare.stored import StoredWeights
from ingot.compiler.interpret import Value
from ingot.errors import UsageError
from ingot.ops.registry import Tolerance
from ingot.ops.steps import step_inputs
from ingot.targets.work import Work

SAME = Tolerance(0.0, 0.0)
Inputs = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps that kernels are looked at in, over the same pages.

    `prefill` has all tokens of the prompts, and `decode` the last of each once more, which takes
    other ways through kernels. `logit_rows` are those of the prefill.
    """

    prefill: Inputs
    decode: Inputs
    num_pages: int
    prompts: list[list[int]]

    @property
    def all(self) -> dict[str, Inputs]:
        return {"prefill": self.prefill, "decode": self.decode}


@dataclass(frozen=True, slots=True)
class KernelError:
    """A kernel that left something else than it should have; `wanted` is what."""

    seen: Seen
    step: str
    difference: Difference
    wanted: Mapping[str, Value]
    overwritten: bool = False  # between kernels: what it was given is not what was left for it


def steps_of(prompts: Sequence[Sequence[int]], limits: Limits) -> Steps:
    """Steps with as many of the prompts as have room, in their order; the first is cut if it must.

    Raises UsageError where there is no prompt.
    """
    chosen: list[list[int]] = []
    room = min(limits.max_num_batched_tokens, limits.max_num_seqs * limits.max_model_len)
    for prompt in prompts:
        cut = list(prompt[: min(limits.max_model_len, limits.max_num_batched_tokens)])
        if cut and len(chosen) < limits.max_num_seqs and (len(cut) <= room or not chosen):
            chosen.append(cut)
            room -= len(cut)
    if not chosen:
        raise UsageError("there is no prompt to run", hint="Give one with at least one token.")
    size = limits.page_size
    pages, count = [], 1  # page 0 stays free: a slot that is forgotten shows
    for prompt in chosen:
        needed = -(-len(prompt) // size)
        pages.append(list(range(count, count + needed))[::-1])
        count += needed
    prefill = step_inputs(chosen, [0] * len(chosen), pages, size)
    decode = step_inputs([p[-1:] for p in chosen], [len(p) - 1 for p in chosen], pages, size)
    for inputs in (prefill, decode):
        inputs["logit_rows"] = inputs["logit_rows"][-limits.max_logit_rows :]
    return Steps(prefill, decode, count, chosen)


@dataclass(frozen=True, slots=True)
class Kernels:
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
        """What a kernel got wrong in either step: what was overwritten before it ran, and what it
        made of what it was given."""
        for name, inputs in self.steps.all.items():
            seen = self.seen[name][number]
            for found, left in self._overwritten(name, number):
                yield KernelError(seen, name, found, {found.output: left}, overwritten=True)
            wanted = expected(seen, inputs, self.stored.read)
            for found in errors_against(seen, wanted):
                if found.is_beyond:
                    yield KernelError(seen, name, found, wanted)

    def _overwritten(self, step: str, number: int) -> Iterator[tuple[Difference, Value]]:
        """What a kernel was given, where that is not what the one that made it had left."""
        for name, given in self.seen[step][number].before.items():
            left = self._left(step, number, name)
            for (suffix, one), (_, other) in zip(
                parts(given), parts(given if left is None else left), strict=True
            ):
                found = difference(f"{name}{suffix}", one, other, SAME, by_rows=False)
                if found.is_beyond and left is not None:
                    yield found, left

    def _left(self, step: str, number: int, name: str) -> Value | None:
        """What the last kernel before that one that wrote into a buffer had left there."""
        for seen in reversed(self.seen[step][:number]):
            if name in seen.after:
                return seen.after[name]
        return None


def run_kernels(artifact: Artifact, entry: TargetEntry, steps: Steps) -> Kernels:
    """Runs the steps on the artifact's target, as compiled. Raises what opening it raises."""
    plan = artifact.plan_of(entry)
    stored = StoredWeights(artifact, entry, plan)
    code = artifact.read(entry.step.kernels) if kind_of_name(entry.name) == "cpu" else b""
    step: CpuStep | CudaStep
    if code:
        addresses = stored.addresses()
        step = CpuStep(plan, code, entry.step.kernels, addresses, steps.num_pages)
    else:
        longest = max(map(len, steps.prompts))
        step = CudaStep(artifact, plan, steps.num_pages, longest)
    try:
        seen = {name: step.run(inputs) for name, inputs in steps.all.items()}
    finally:
        step.close()
    return Kernels(entry.name, plan, stored, steps, seen, code)


def as_numbers(value: Value) -> Tensor:
    """What a value stands for, [rows, columns] in float32."""
    dense = value.float() if isinstance(value, Tensor) else value.dequantize()
    return dense.reshape(len(dense), -1)
