"""Quantized linears and embeddings in one unit: compiled once a target, run with any rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ingot.artifact.formats import Spans
from ingot.artifact.plan import DTYPE_BYTES, Buffer, Dim, DType, Instruction, MemoryPlan, Plan
from ingot.artifact.target import Target
from ingot.ops.registry import OPS
from ingot.ops.scaled import Scaled
from ingot.targets.cpu.generate import Generated, generate
from ingot.targets.cpu.quantized_panels import pack_quantized
from tests.support import samples
from tests.targets.cpu.native import Memory, aligned, built, load, runnable, tensor_bytes
from tests.targets.cpu.units import INPUT_SHAPES, LIMITS

TARGETS = runnable(
    *("cpu:x86-64-v4+avx512_vnni", "cpu:x86-64-v4"),
    *("cpu:x86-64-v3+avx_vnni", "cpu:x86-64-v3", "cpu:portable"),
)


@dataclass(frozen=True)
class Matrix:
    """A quantized weight [outputs, inputs]; a linear reads it, and an embedding too."""

    bits: int
    group: int
    block: int
    inputs: int
    outputs: int
    bias: bool = False
    # A gated product reads it, too, and rounds its result in such groups; what it makes are heads
    # of queries, one of keys and one of values, too.
    result_group: int = 0
    is_heads: bool = False

    @property
    def name(self) -> str:
        return f"int{self.bits}g{self.group}b{self.block}k{self.inputs}o{self.outputs}"

    @property
    def spans(self) -> Spans:
        return Spans(self.group, self.block)

    @property
    def constants(self) -> dict[str, int]:
        return {"group": self.group, "block": self.block, "bits": self.bits}

    @property
    def parts(self) -> tuple[str, ...]:
        """What its ops read of it."""
        multipliers = ("weight_multipliers",) if self.spans.has_multipliers else ()
        return ("weight", *multipliers, "weight_scales")

    def drawn(self, rng: torch.Generator) -> dict[str, Tensor]:
        """Random parts over the whole range."""
        whole = samples.quantized_weight(
            rng, self.outputs, self.inputs, group=self.group, block=self.block, bits=self.bits
        )
        return {name: tensor for name, tensor in whole.items() if tensor is not None}

    def packed(self, parts: Mapping[str, Tensor]) -> Tensor:
        matrix = Scaled(parts["weight"], parts.get("weight_multipliers"), parts["weight_scales"])
        return pack_quantized(matrix, bits=self.bits, spans=self.spans)


# Sizes that fill panels and that do not; groups of every size, and one a row; many groups.
MATRICES = (
    Matrix(8, 32, 32, 256, 96),
    Matrix(8, 64, 64, 192, 72, bias=True),
    Matrix(8, 40, 40, 40, 33),
    Matrix(8, 416, 416, 416, 128, bias=True, result_group=32),
    Matrix(4, 32, 32, 288, 80, bias=True),
    Matrix(4, 32, 64, 2112, 40),
    Matrix(4, 32, 128, 1664, 72, bias=True),
    Matrix(4, 64, 128, 256, 256, result_group=128, is_heads=True),
    Matrix(4, 128, 128, 384, 200),
)
HEAD, PAGES = 64, 16
CACHED = ("k_cache", "v_cache")
SMALLEST_VOCABULARY = min(m.outputs for m in MATRICES)
Values = dict[str, Tensor]


def weights(rng: torch.Generator) -> Values:
    """Random weights of the whole range for every matrix."""
    drawn: Values = {}
    for m in MATRICES:
        drawn |= {f"{m.name}.{argument}": tensor for argument, tensor in m.drawn(rng).items()}
        if m.bias:
            drawn[f"{m.name}.bias"] = samples.normal(rng, m.outputs)
    return drawn


def activations(rng: torch.Generator, rows: int) -> Values:
    """Normal values with one huge outlier, and in the last row nothing else than its first; and
    residuals and tables."""
    drawn = {f"{m.name}.x": samples.with_outliers(rng, 1, rows, m.inputs) for m in MATRICES}
    drawn |= {
        f"{m.name}.residual": samples.normal(rng, 1, rows, m.outputs) for m in MATRICES if m.bias
    }
    tables = (f"{m.name}.table" for m in MATRICES if m.is_heads)
    return drawn | {table: samples.normal(rng, 1, rows, HEAD) for table in tables}


def expected(values: Values, tokens: Tensor) -> Values:
    """What the references say, under the names of the unit's results."""
    results: Values = {}
    for m in MATRICES:
        name = m.name
        x8, scales = OPS["quantize"].reference(x=values[f"{name}.x"], group=m.block)
        weight = {"weight_multipliers": None} | {a: values[f"{name}.{a}"] for a in m.parts}
        results |= {f"{name}.values": x8, f"{name}.scales": scales}
        results[f"{name}.out"] = OPS["quantized_linear"].reference(
            values=x8,
            scales=scales,
            bias=values.get(f"{name}.bias"),
            **weight,
            **m.constants,
            residual=values.get(f"{name}.residual"),
        )
        if m.result_group:
            given = {"values": x8, "scales": scales, "bias": values.get(f"{name}.bias"), **weight}
            results[f"{name}.gated"] = OPS["quantized_gated_linear"].reference(
                **given, **m.constants, kind="silu"
            )
        results[f"{name}.row"] = OPS["quantized_embedding"].reference(
            tokens=tokens[None], **weight, **m.constants
        )
    return results


class Unit:
    """All matrices compiled for a target."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.plan = _plan()

    @cached_property
    def generated(self) -> Generated:
        return generate(self.plan, Target.parse(self.target))

    def start(self) -> None:
        """Starts to build it, ahead of its first use."""
        built(self.generated.source, self.target)

    def memory(self, values: Values) -> Memory:
        """Buffers with those values in them; the rest of the arena is NaN."""
        packed = {
            f"{m.name}.weight": m.packed({a: values[f"{m.name}.{a}"] for a in m.parts})
            for m in MATRICES
        }
        stored = []
        for buffer in self.plan.of_kind("weight"):
            inside = buffer.base != ""  # packed with the weight
            empty = torch.empty(0, dtype=torch.uint8)
            data = tensor_bytes(empty if inside else packed.get(buffer.name, values[buffer.name]))
            stored.append(aligned(data.nbytes))
            stored[-1][:] = data
        arena = aligned(self.plan.memory.arena_bytes, fill=0xFF)
        for buffer in self.plan.of_kind("arena"):
            if buffer.name in values:
                data = tensor_bytes(values[buffer.name])
                arena[buffer.offset : buffer.offset + data.nbytes] = data
        caches = [aligned(4 * PAGES * 16 * HEAD) for _ in self.plan.of_kind("cache")]
        return Memory(stored, caches, arena, PAGES)

    def run(self, values: Values, tokens: Tensor, threads: int = 2) -> Values:
        memory = self.memory(values)
        memory.run(load(self.generated.source, self.target), step_inputs(tokens), threads)
        caches = zip(self.plan.of_kind("cache"), memory.caches, strict=True)
        stored = {buffer.name: torch.from_numpy(cache.copy()) for buffer, cache in caches}
        return self.results(memory.arena, len(tokens)) | stored

    def results(self, arena: np.ndarray, rows: int) -> Values:
        """Every result of the arena, by name."""
        found = {}
        for instruction in self.plan.instructions:
            for name in instruction.outputs.values():
                buffer = self.plan.buffer(name)
                dtype = torch.int8 if buffer.dtype == "int8" else torch.float32
                inner = map(int, buffer.shape[1:])
                found[name] = torch.empty((1, rows, *inner), dtype=dtype)
                raw = tensor_bytes(found[name])
                raw[:] = arena[buffer.offset : buffer.offset + raw.nbytes]
        return found


@cache
def unit(target: str) -> Unit:
    return Unit(target)


def step_inputs(tokens: Tensor) -> Values:
    """A step of those tokens, stored in turn; these ops read nothing else of it."""
    others = {name: torch.zeros(1) for name in INPUT_SHAPES}
    slots = torch.arange(len(tokens))
    return {**others, "page_table": torch.zeros(1, 1), "tokens": tokens, "slots": slots}


def _plan() -> Plan:
    buffers = [
        Buffer(name=name, dtype="int32", shape=shape, kind="input")
        for name, shape in INPUT_SHAPES.items()
    ]
    offset = 0
    for m in MATRICES:
        for buffer in _weights(m):
            buffers.append(buffer)
        for argument, dtype, *inner in _temporaries(m):
            shape: tuple[Dim, ...] = ("N", *inner)
            name = f"{m.name}.{argument}"
            buffers.append(Buffer(name=name, dtype=dtype, shape=shape, kind="arena", offset=offset))
            offset += -(-DTYPE_BYTES[dtype] * math.prod(map(LIMITS.bound, shape)) // 64) * 64
        buffers += _heads(m) if m.is_heads else []
    return Plan(
        limits=LIMITS,
        buffers=tuple(buffers),
        instructions=tuple(i for m in MATRICES for i in _instructions(m)),
        memory=MemoryPlan(arena_bytes=offset, slots=()),
    )


def _weights(m: Matrix) -> Iterator[Buffer]:
    shapes: dict[str, tuple[DType, tuple[int, ...]]] = {
        "weight": ("int8" if m.bits == 8 else "int4", (m.outputs, m.inputs)),
        "weight_scales": ("float16", (m.outputs, m.inputs // m.block)),
    }
    if m.spans.has_multipliers:
        shapes["weight_multipliers"] = ("int4", (m.outputs, m.inputs // m.group))
    if m.bias:
        shapes["bias"] = ("float32", (m.outputs,))
    for argument, (dtype, shape) in shapes.items():
        base = f"{m.name}.weight" if argument.startswith("weight_") else ""
        yield Buffer(
            name=f"{m.name}.{argument}", dtype=dtype, shape=shape, kind="weight", base=base
        )


def _heads(m: Matrix) -> Iterator[Buffer]:
    """The heads of a product, and caches for them."""
    out, first = m.outputs // HEAD - 2, 0
    for name, count in (("q", out), ("k", 1), ("v", 1)):
        yield Buffer(
            name=f"{m.name}.{name}", dtype="float32", shape=("N", count, HEAD), kind="view",
            base=f"{m.name}.out", offset=first * HEAD, row_stride=m.outputs,
        )  # fmt: skip
        first += count
    for name in (f"{m.name}.{when}.{kind}" for when in ("fused", "again") for kind in CACHED):
        yield Buffer(name=name, dtype="float32", shape=(0, 1, 16, HEAD), kind="cache")


def _temporaries(m: Matrix) -> tuple[tuple[Any, ...], ...]:
    return (
        ("x", "float32", m.inputs),
        ("values", "int8", m.inputs),
        ("scales", "float32", m.inputs // m.block),
        ("out", "float32", m.outputs),
        ("row", "float32", m.inputs),
        *([("residual", "float32", m.outputs)] if m.bias else []),
        *(_gated(m) if m.result_group else []),
        *([("table", "float32", HEAD), *_turned(m)] if m.is_heads else []),
    )


def _turned(m: Matrix) -> list[tuple[Any, ...]]:
    heads = m.outputs // HEAD - 2
    return [(f"{when}.q", "float32", heads, HEAD) for when in ("fused", "again")]


def _gated(m: Matrix) -> tuple[tuple[str, DType, int], ...]:
    size = m.outputs // 2
    scales = size // m.result_group
    return (
        ("gated", "float32", size),
        *(("fused.values", "int8", size), ("fused.scales", "float32", scales)),
        *(("again.values", "int8", size), ("again.scales", "float32", scales)),
    )


def _instructions(m: Matrix) -> Iterator[Instruction]:
    def call(op: str, inputs: dict[str, str], outputs: dict[str, str], **attrs: Any) -> Instruction:
        inputs = {a: f"{m.name}.{name}" for a, name in inputs.items()}
        outputs = {result: f"{m.name}.{name}" for result, name in outputs.items()}
        return Instruction(op=op, inputs=inputs, outputs=outputs, attrs=attrs, origin=m.name)

    def quantized(result: str) -> dict[str, str]:
        return {part: f"{result}.{part}" if result else part for part in ("values", "scales")}

    weight = {part: part for part in m.parts}
    product = {**quantized(""), **weight} | ({"bias": "bias"} if m.bias else {})
    residual = {"residual": "residual"} if m.bias else {}
    yield call("quantize", {"x": "x"}, quantized(""), group=m.block)
    yield call("quantized_linear", {**product, **residual}, {"out": "out"}, **m.constants)
    looked_up = call("quantized_embedding", weight, {"out": "row"}, **m.constants)
    yield replace(looked_up, inputs={**looked_up.inputs, "tokens": "tokens"})
    if m.result_group:
        gate: dict[str, Any] = {**m.constants, "kind": "silu"}
        rounded = {**gate, "result_group": m.result_group}
        yield call("quantized_gated_linear", product, {"out": "gated"}, **gate)
        results = {"out": "fused.values", "out_scales": "fused.scales"}
        yield call("quantized_gated_linear_quantize", product, results, **rounded)
        yield call("quantize", {"x": "gated"}, quantized("again"), group=m.result_group)
    if m.is_heads:
        turn = {"table": "table", "slots": "slots"}
        fused, again = ({c: f"{when}.{c}" for c in CACHED} for when in ("fused", "again"))
        heads = {name: name for name in ("q", "k", "v")}
        for op, given, to, attrs in (
            ("quantized_linear_rope_kv_write", {**product, **fused}, "fused.q", m.constants),
            ("rope_kv_write", {**heads, **again}, "again.q", {}),
        ):
            turned = call(op, {**given, **turn}, {"out": to}, **attrs)
            yield replace(turned, inputs={**turned.inputs, "slots": "slots"})
