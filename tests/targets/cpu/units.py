"""Many kernels in one unit: compiled once a target, run with any rows, values and threads.

A unit is made of plans of a few primitives, which the rules of the target group into kernels.
Every temporary has a place of its own in an arena that starts as NaN, so that nothing may rely on
zeros and every result is there at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from ingot.artifact.formats import stored_bytes
from ingot.artifact.plan import Buffer, Limits, MemoryPlan, Plan, aligned, arrays_of, scales_offset
from ingot.artifact.tensors import read_header
from ingot.compiler.interpret import Value, interpret
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.ops.scaled import Scaled, from_planes
from ingot.ops.stacks import stack_of
from ingot.runtime.devices.mapped_file import weight_offsets
from ingot.targets.cpu.generate import generate, weight_layouts
from ingot.targets.cpu.kind import KIND
from ingot.targets.cpu.pack import pack
from ingot.targets.cpu.weights import WeightLayout, with_stacks
from ingot.targets.cpu.work import CpuWork, work_of
from ingot.targets.target import target_named
from tests.support import samples
from tests.targets.cpu.native import (
    Memory,
    Sources,
    aligned_bytes,
    built,
    load,
    pack_cache,
    sources_of,
    tensor_bytes,
    unpack_cache,
)
from tests.targets.cpu.steps import Step, make_step
from tests.targets.sketch import LIMITS, Sketch

Case = Callable[[Sketch], None]
Values = dict[str, Value]
# More rows than a product takes at once, see most_unit_rows in kernels/linear.h.
WIDE = replace(LIMITS, max_num_batched_tokens=320, max_logit_rows=320)


class Unit:
    """Cases compiled together for a target, with further flags of the compiler, in groups but for
    the rules that are left out."""

    def __init__(
        self,
        cases: Mapping[str, Case],
        target: str,
        disable: Collection[str] = (),
        flags: tuple[str, ...] = (),
        limits: Limits = WIDE,
    ) -> None:
        sketch = Sketch(limits)
        for name, case in cases.items():
            sketch.prefix = f"{name}."
            case(sketch)
        self.target, self.flags = target, flags
        self.weights = sketch.weights
        self.grouped, _ = KIND.group(KIND.rewrite(sketch.plan(), sketch.fine), disable)
        self.plan = apart(with_stacks(self.grouped, weight_layouts(self.grouped)))
        self.work = work_of(self.plan)

    @cached_property
    def sources(self) -> Sources:
        return sources_of(generate(self.plan, target_named(self.target)))

    @cached_property
    def layouts(self) -> tuple[WeightLayout, ...]:
        return weight_layouts(self.plan)

    @cached_property
    def given(self) -> tuple[Buffer, ...]:
        return given_rows(self.plan)

    @cached_property
    def packed_weights(self) -> list[np.ndarray]:
        with TemporaryDirectory() as folder:
            path = Path(folder, "weights.safetensors")
            pack(path, self.plan, self.layouts, partial(_weight, self), _Integers(self))
            raw = path.read_bytes()
            with path.open("rb") as file:
                header = read_header(file.fileno(), path.name)
        packed = []
        for buffer, offset in zip(
            self.plan.of_kind("weight"), weight_offsets(self.plan, header, path.name), strict=True
        ):
            entry = header.tensors[buffer.base or buffer.name]
            packed.append(aligned_bytes(entry.offset + entry.nbytes - offset))
            packed[-1][:] = np.frombuffer(raw, np.uint8, len(packed[-1]), offset)
        return packed

    def with_weights(self, changed: Mapping[str, Value]) -> Unit:
        """The same kernels on other weights."""
        other = copy(self)
        other.__dict__.pop("packed_weights", None)
        other.weights = {**self.weights, **changed}
        return other

    def step(self, rng: torch.Generator, sequences: list[tuple[int, int]]) -> Step:
        """See `make_step`; tokens are in all tables."""
        return make_step(rng, sequences, self.vocabulary)

    @cached_property
    def vocabulary(self) -> int:
        """Tokens that all tables have."""
        tables = (i.inputs["weight"] for i in self.plan.instructions if i.op == "embedding")
        return min((int(self.plan.buffer(name).shape[0]) for name in tables), default=1)

    def draw(self, rng: torch.Generator, step: Step) -> Values:
        """Values of what no instruction makes, and of the states."""
        rounded = {
            self.plan.root(i.inputs["x"]).name
            for i in self.plan.instructions
            if i.op == "cast" and self.plan.buffer(i.outputs["out"]).format.is_scaled
        }
        values: Values = {}
        for buffer in self.given:
            x = samples.normal(rng, *self.shape(buffer, step), dtype=TORCH_DTYPES[buffer.dtype])
            values[buffer.name] = _with_outliers(x) if buffer.name in rounded else x
        for state in self.plan.of_kind("state"):
            values[state.name] = _drawn_state(rng, state, step.num_pages)
        return values

    def shape(self, buffer: Buffer, step: Step) -> tuple[int, ...]:
        """Of a temporary in that step."""
        rows = {"S": step.num_sequences}
        return tuple(
            rows.get(dim, step.num_rows) if isinstance(dim, str) else dim for dim in buffer.shape
        )

    def memory(self, values: Mapping[str, Value], step: Step) -> Memory:
        """The unit's buffers with those values in them."""
        arena = aligned_bytes(self.plan.memory.arena_bytes, fill=0xFF)
        for buffer in self.given:
            for place, part in zip(self.places(buffer, step), parts_of(values[buffer.name]),
                                   strict=True):  # fmt: skip
                arena[place] = tensor_bytes(part)
        caches = []
        for buffer in self.plan.of_kind("state"):
            for part in parts_of(values[buffer.name]):
                data = tensor_bytes(pack_cache(buffer.name, part))
                caches.append(aligned_bytes(data.nbytes))
                caches[-1][:] = data
        outputs = self.plan.of_kind("output")
        logits = np.full((step.num_rows, outputs[0].columns if outputs else 0), np.nan, np.float32)
        inputs = tuple(array.name for array in self.plan.spec.inputs)
        return Memory(self.packed_weights, caches, arena, step.num_pages, logits, inputs)

    def places(self, buffer: Buffer, step: Step) -> Iterator[slice]:
        """The bytes of the arena that a temporary's numbers take in a step, and its scales."""
        offset = buffer.offset
        bound = [*map(self.plan.limits.bound, buffer.shape)]
        for dtype, numbers in arrays_of(buffer.format, self.shape(buffer, step)):
            yield slice(offset, offset + stored_bytes(dtype, numbers))
            offset += scales_offset(buffer.format, bound)

    def run(self, values: Mapping[str, Value], step: Step, threads: int = 2) -> Values:
        """All temporaries and states as the step left them, and the logits."""
        memory = self.memory(values, step)
        before = memory.arena.copy()
        memory.run(load(self.sources, self.target, self.flags), step.inputs, threads)
        after: Values = {
            b.name: torch.from_numpy(memory.logits) for b in self.plan.of_kind("output")
        }
        for buffer in self.plan.of_kind("arena"):
            if buffer in self.given:
                after[buffer.name] = values[buffer.name]
                continue
            after[buffer.name] = self.taken(memory.arena, buffer, step)
            for place in self.places(buffer, step):
                before[place] = memory.arena[place]
        assert np.array_equal(before, memory.arena), "a kernel wrote beside its results"
        arrays = iter(memory.caches)
        for state in self.plan.of_kind("state"):
            parts = [
                unpack_cache(
                    state.name, torch.from_numpy(next(arrays)).view(like.dtype), like.shape
                )
                for like in parts_of(values[state.name])
            ]
            after[state.name] = _whole(parts)
        return after

    def taken(self, arena: np.ndarray, buffer: Buffer, step: Step) -> Value:
        """What lies in a temporary's place."""
        shape = self.shape(buffer, step)
        parts = []
        for place, (dtype, _) in zip(
            self.places(buffer, step), arrays_of(buffer.format, shape), strict=True
        ):
            stored = torch.from_numpy(arena[place].copy())
            if dtype == "int16":
                parts.append(from_planes(stored.view(torch.int8).view(*shape[:-1], 2, -1)))
                continue
            numbers = stored.view(TORCH_DTYPES[dtype])
            parts.append(numbers.view((*shape[:-1], -1) if parts else shape))
        return _whole(parts, buffer.format.block)

    def start(self) -> None:
        """Starts to build it, ahead of its first use."""
        built(self.sources, self.target)

    def expected(
        self, kernel: CpuWork, step: Step, before: Mapping[str, Value], after: Mapping[str, Value]
    ) -> Values:
        """What the references make of what a kernel has read; the states were so `before`.

        What it read is taken from what the other kernels have left, so that no difference adds up.
        """
        plan = replace(self.grouped, instructions=kernel.members, groups=())
        read = {n: x for n, x in after.items() if self.plan.buffer(n).kind == "arena"}
        states = {
            state.name: _copy(before[state.name]) if state.name in kernel.mutated else
            after[state.name]
            for state in self.plan.of_kind("state")
        }  # fmt: skip
        made = interpret(
            plan, lambda b: self.weights[b.name], {**step.inputs, **read}, states  # type: ignore[dict-item]
        )  # fmt: skip
        results = {name: x for part in made for name, x in part.items() if name in kernel.writes}
        return results | {name: states[name] for name in kernel.mutated}


def given_rows(plan: Plan) -> tuple[Buffer, ...]:
    """The temporaries that no instruction makes."""
    made = {name for i in plan.instructions for name in i.outputs.values()}
    return tuple(b for b in plan.of_kind("arena") if b.name not in made)


def apart(plan: Plan, offsets: Mapping[str, int] | None = None) -> Plan:
    """The grouped plan with every temporary in a place of its own, or in the one that is given.

    What nobody reads is what a case is about, so it has a place, too.
    """
    read = {plan.root(name).name for i in plan.instructions for name in i.inputs.values()}
    buffers, end = [], 0
    for buffer in plan.buffers:
        if buffer.kind == "arena" or (buffer.kind == "inner" and buffer.name not in read):
            offset = (offsets or {}).get(buffer.name, end)
            buffer = replace(buffer, kind="arena", offset=offset)
            end += aligned(plan.arena_bytes_of(buffer))
        buffers.append(buffer)
    return replace(plan, buffers=tuple(buffers), memory=MemoryPlan(arena_bytes=end))


@dataclass(frozen=True)
class _Integers:
    """A unit's weights in integers, for the packer."""

    unit: Unit

    def matrix(self, name: str) -> Scaled:
        value = _weight(self.unit, name)
        assert isinstance(value, Scaled)
        return value


def _weight(unit: Unit, name: str) -> Value:
    """A weight, or one matrix of a stack."""
    if name in unit.weights:
        return unit.weights[name]
    stack, index = stack_of(name)
    return unit.weights[stack][index]


def _with_outliers(x: Tensor) -> Tensor:
    """The first value huge; of the last row nothing but its first value."""
    x[-1].view(-1)[1:] = 0
    x[0].view(-1)[0] = 1e4
    return x


def _drawn_state(rng: torch.Generator, state: Buffer, num_pages: int) -> Value:
    shape = (num_pages, *map(int, state.shape[1:]))
    if not state.format.is_scaled:
        return samples.normal(rng, *shape, dtype=TORCH_DTYPES[state.dtype])
    values = torch.randint(-127, 128, shape, generator=rng).to(torch.int8)
    scales = torch.rand((*shape[:-1], shape[-1] // state.format.block), generator=rng) / 64
    return Scaled(values, None, scales)


def parts_of(value: Value) -> list[Tensor]:
    return [value.values, value.scales] if isinstance(value, Scaled) else [value]


def _whole(parts: list[Tensor], block: int = 0) -> Value:
    return Scaled(parts[0], None, parts[1], block=block) if len(parts) > 1 else parts[0]


def _copy(value: Value) -> Value:
    return _whole([part.clone() for part in parts_of(value)])
