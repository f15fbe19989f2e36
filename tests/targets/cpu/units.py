"""Many calls of ops in one unit: compiled once a target, run with any rows, values and threads.

Every call has buffers of its own, parameters packed by the real packer, temporaries in an arena
that starts as NaN, so that nothing may rely on zeros.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ingot.artifact.plan import (
    DTYPE_BYTES,
    Attr,
    Buffer,
    Dim,
    DType,
    Instruction,
    Limits,
    MemoryPlan,
    Plan,
)
from ingot.artifact.target import Target
from ingot.ops.kv_write import CACHES
from ingot.ops.registry import OPS
from ingot.targets.cpu.generate import generate
from ingot.targets.cpu.pack import num_elements, pack
from tests.support import samples
from tests.targets.cpu.native import (
    Memory,
    aligned,
    built,
    folder,
    load,
    pack_cache,
    tensor_bytes,
    unpack_cache,
)

LIMITS = Limits(
    max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=160, max_logit_rows=160, page_size=16
)
NAMES: Mapping[torch.dtype, DType] = {torch.float32: "float32", torch.bfloat16: "bfloat16",
    torch.int8: "int8"}  # fmt: skip
DTYPES = {name: dtype for dtype, name in NAMES.items()}
INPUT_SHAPES: Mapping[str, tuple[Dim, ...]] = {
    "tokens": ("N",),
    "positions": ("N",),
    "slots": ("N",),
    "query_start": ("S+1",),
    "context_lens": ("S",),
    "page_table": ("S", "P"),
    "logit_rows": ("R",),
}
INPUT_OF = {**{name: name for name in INPUT_SHAPES}, "rows": "logit_rows"}
VOCABULARY = 50


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call of an op with fixed constants.

    rows: activations by argument, as (shape after the rows, dtype). caches: (KV heads, page size,
    head size, dtype) where the op takes them. shares: arguments that are weights of other cases.
    """

    name: str
    op: str
    attrs: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    rows: Mapping[str, tuple[tuple[int, ...], torch.dtype]] = field(default_factory=dict)
    caches: tuple[int, int, int, torch.dtype] | None = None
    shares: Mapping[str, str] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The op's arguments that are inputs of the step."""
        return tuple(a for a in inspect.signature(OPS[self.op].reference).parameters
                     if a in INPUT_OF and a not in self.rows)  # fmt: skip

    def draw_caches(self, rng: torch.Generator, num_pages: int) -> dict[str, Tensor]:
        """Values of the op's caches, and of their scales where they have some."""
        if self.caches is None:
            return {}
        *inner, dtype = self.caches
        return samples.caches(rng, (num_pages, *inner), dtype)  # type: ignore[arg-type]

    def key(self, argument: str) -> str:
        return self.shares.get(argument, f"{self.name}.{argument}")


@dataclass(frozen=True)
class Step:
    """The integer inputs of a step."""

    inputs: Mapping[str, Tensor]
    num_pages: int

    @property
    def num_rows(self) -> int:
        return len(self.inputs["tokens"])

    def sequence(self, index: int) -> tuple[Step, slice]:
        """The step of one sequence alone, and where its rows were."""
        start, end = self.inputs["query_start"][index : index + 2].tolist()
        rows = slice(start, end)
        inputs = {n: self.inputs[n][rows] for n in ("tokens", "positions", "slots")}
        inputs |= {n: self.inputs[n][index : index + 1] for n in ("context_lens", "page_table")}
        inputs["query_start"] = torch.tensor([0, end - start])
        inputs["logit_rows"] = torch.arange(end - start)
        return replace(self, inputs=inputs), rows


def make_step(rng: torch.Generator, sequences: list[tuple[int, int]]) -> Step:
    """A step of sequences given as (rows, context); some slots are -1, all rows are selected."""
    paged = samples.paged_step(rng, sequences, LIMITS.page_size)
    count = len(paged.slots)
    paged.slots[torch.rand(count, generator=rng) < 0.1] = -1
    positions = [torch.arange(context - rows, context) for rows, context in sequences]
    inputs = {
        "tokens": torch.randint(0, VOCABULARY, (count,), generator=rng),
        "positions": torch.cat(positions),
        "slots": paged.slots,
        "query_start": paged.query_start,
        "context_lens": paged.context_lens,
        "page_table": paged.page_table,
        "logit_rows": torch.randperm(count, generator=rng),
    }
    return Step(inputs, paged.num_pages)


class Unit:
    """Cases compiled together for a target."""

    def __init__(self, cases: tuple[Case, ...], target: str) -> None:
        self.cases = cases
        self.target = target
        self.plan = _plan(cases)
        self.generated = generate(self.plan, Target.parse(target))
        self.weights = {f"{c.name}.{a}": w for c in cases for a, w in c.weights.items()}

    @cached_property
    def packed_weights(self) -> list[np.ndarray]:
        path = folder() / "weights.safetensors"
        pack(path, self.plan, self.generated.weights, lambda name: self.weights[name])
        raw = path.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        packed = []
        for layout in self.generated.weights:
            nbytes = -(-num_elements(layout) * DTYPE_BYTES[layout.dtype] // 64) * 64
            packed.append(aligned(nbytes))
            packed[-1][:] = np.frombuffer(raw, np.uint8, nbytes, start)
            start += nbytes
        return packed

    def draw(self, rng: torch.Generator, step: Step) -> dict[str, Tensor]:
        """Values of all activations and caches."""
        values = {}
        for case in self.cases:
            for argument, (shape, dtype) in case.rows.items():
                values[case.key(argument)] = samples.normal(
                    rng, 1, step.num_rows, *shape, dtype=dtype
                )
            caches = case.draw_caches(rng, step.num_pages)
            values |= {case.key(name): cache for name, cache in caches.items()}
        return values

    def memory(self, values: Mapping[str, Tensor], step: Step) -> Memory:
        """The unit's buffers with those values in them."""
        arena = aligned(self.plan.memory.arena_bytes, fill=0xFF)
        for buffer in self.plan.of_kind("arena"):
            if buffer.name in values:
                data = tensor_bytes(values[buffer.name])
                arena[buffer.offset : buffer.offset + data.nbytes] = data
        caches = []
        for buffer in self.plan.of_kind("cache"):
            data = tensor_bytes(pack_cache(buffer.name, values[buffer.name]))
            caches.append(aligned(data.nbytes))
            caches[-1][:] = data
        return Memory(self.packed_weights, caches, arena, step.num_pages)

    def run(self, values: Mapping[str, Tensor], step: Step, threads: int = 2) -> dict[str, Tensor]:
        """Results by `case.result`, and the caches as the step left them."""
        memory = self.memory(values, step)
        before = memory.arena.copy()
        self.execute(memory, step, threads)
        results = {}
        for instruction in self.plan.instructions:
            for name in instruction.outputs.values():
                buffer = self.plan.buffer(name)
                shape = (1, step.num_rows, *map(int, buffer.shape[1:]))
                dtype = DTYPES[buffer.dtype]
                results[name] = torch.empty(shape, dtype=dtype)
                raw = tensor_bytes(results[name])
                where = slice(buffer.offset, buffer.offset + raw.nbytes)
                raw[:] = memory.arena[where]
                before[where] = raw
        assert np.array_equal(before, memory.arena), "a kernel wrote beside its results"
        for buffer, raw in zip(self.plan.of_kind("cache"), memory.caches, strict=True):
            like = values[buffer.name]
            cache = torch.from_numpy(raw.copy()).view(like.dtype)
            results[buffer.name] = unpack_cache(buffer.name, cache, like.shape)
        return results

    def start(self) -> None:
        """Starts to build it, ahead of its first use."""
        built(self.generated.source, self.target)

    def execute(self, memory: Memory, step: Step, threads: int) -> None:
        """Runs the compiled unit on those buffers."""
        memory.run(load(self.generated.source, self.target), step.inputs, threads)

    def expected(self, values: Mapping[str, Tensor], step: Step) -> dict[str, Tensor]:
        """What the references say, under the names of `run`."""
        results = {}
        for case in self.cases:
            arguments: dict[str, Any] = {**case.attrs, **case.weights}
            arguments |= {a: self.weights[key] for a, key in case.shares.items()}
            arguments |= {a: values[case.key(a)] for a in case.rows}
            arguments |= {a: _graph_input(step, a) for a in case.inputs}
            caches = [a for a in CACHES if case.key(a) in values]
            arguments |= {a: values[case.key(a)].clone() for a in caches}
            out = OPS[case.op].reference(**arguments)
            named = () if out is None else out if isinstance(out, tuple) else (out,)
            for result, tensor in zip(OPS[case.op].outputs, named, strict=True):
                results[case.key(result)] = tensor
            results |= {case.key(a): arguments[a] for a in caches}
        return results


def _graph_input(step: Step, argument: str) -> Tensor:
    value = step.inputs[INPUT_OF[argument]]
    return value[None] if argument in ("tokens", "positions") else value


def _plan(cases: tuple[Case, ...]) -> Plan:
    buffers = [
        Buffer(name=name, dtype="int32", shape=shape, kind="input")
        for name, shape in INPUT_SHAPES.items()
    ]
    instructions = []
    offset = 0

    def arena(name: str, dtype: torch.dtype, shape: tuple[Dim, ...]) -> None:
        nonlocal offset
        buffers.append(
            Buffer(name=name, dtype=NAMES[dtype], shape=shape, kind="arena", offset=offset)
        )
        offset += -(-dtype.itemsize * math.prod(map(LIMITS.bound, shape)) // 64) * 64

    for case in cases:
        for argument, weight in case.weights.items():
            key = case.key(argument)
            shape = tuple(weight.shape)
            buffers.append(Buffer(name=key, dtype=NAMES[weight.dtype], shape=shape, kind="weight"))
        for argument, (inner, dtype) in case.rows.items():
            arena(case.key(argument), dtype, ("N", *inner))
        caches = case.draw_caches(torch.Generator(), 0)
        for argument, cache in caches.items():
            key, shape = case.key(argument), tuple(cache.shape)
            buffers.append(Buffer(name=key, dtype=NAMES[cache.dtype], shape=shape, kind="cache"))
        outputs = {}
        for result, like in zip(OPS[case.op].outputs, _results(case), strict=True):
            rows = "R" if case.op == "select_rows" else "N"
            arena(case.key(result), like.dtype, (rows, *like.shape[2:]))
            outputs[result] = case.key(result)
        arguments = [*case.weights, *case.rows, *case.shares, *caches]
        instructions.append(
            Instruction(
                op=case.op,
                inputs={a: case.key(a) for a in arguments} | {a: INPUT_OF[a] for a in case.inputs},
                outputs=outputs,
                attrs={k: v for k, v in case.attrs.items() if isinstance(v, Attr)},
                origin=f"cases.{case.name}",
            )
        )
    return Plan(
        limits=LIMITS,
        buffers=tuple(buffers),
        instructions=tuple(instructions),
        memory=MemoryPlan(arena_bytes=offset, slots=()),
    )


def _results(case: Case) -> tuple[Tensor, ...]:
    """Meta tensors of one row's results."""
    arguments: dict[str, Any] = {**case.attrs, **case.weights}
    arguments |= {a: torch.empty(1, 1, *shape, dtype=d) for a, (shape, d) in case.rows.items()}
    arguments |= {a: torch.empty(1, 1) if a in ("tokens", "positions") else torch.empty(1)
                  for a in case.inputs}  # fmt: skip
    arguments |= {a: torch.empty(VOCABULARY, 40) for a in case.shares}
    arguments |= case.draw_caches(torch.Generator(), 1)
    return OPS[case.op].empty_results(**arguments)
