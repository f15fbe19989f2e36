"""C++ expressions for the buffers of a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ingot.artifact.plan import DTYPE_BYTES, Buffer, Dim, Instruction, Kind, Plan
from ingot.errors import CodegenError
from ingot.targets.cpu.limits import check_cache
from ingot.targets.cpu.row_wise import is_row_wise

_NUMBERED: tuple[Kind, ...] = ("weight", "cache")
CPP_TYPES: Mapping[str, str] = {
    "float32": "float",
    "bfloat16": "bf16",
    "int32": "int",
    "int8": "std::int8_t",
}


@dataclass(frozen=True)
class Operands:
    """Looks up buffers of a plan and spells them in C++.

    The generated function knows `memory` (weights, caches, arena), `own` (the same, but what a
    thread has for itself in a step of few rows), `step` (inputs and logits) and the symbols N and
    R as variables.
    """

    plan: Plan

    @cached_property
    def buffers(self) -> Mapping[str, Buffer]:
        return self.plan.by_name()

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {
            buffer.name: number
            for kind in _NUMBERED
            for number, buffer in enumerate(self.plan.of_kind(kind))
        }

    @cached_property
    def own(self) -> frozenset[str]:
        """Temporaries that row-wise instructions write."""
        written = (
            self.root(self.buffers[name]).name
            for instruction in self.plan.instructions
            if is_row_wise(instruction)
            for name in instruction.outputs.values()
        )
        return frozenset(name for name in written if self.buffers[name].kind == "arena")

    def rows_of(self, instruction: Instruction) -> Dim:
        """How many rows an instruction takes."""
        names = (*instruction.outputs.values(), *instruction.inputs.values())
        return self.buffers[names[0]].shape[0]

    def of(self, instruction: Instruction, argument: str) -> Buffer:
        """The buffer bound to an argument or a result of an instruction."""
        name = instruction.inputs.get(argument) or instruction.outputs.get(argument)
        if name is None:
            raise CodegenError(f"{where(instruction)} has no operand {argument!r}")
        return self.buffers[name]

    def optional(self, instruction: Instruction, argument: str) -> Buffer | None:
        return self.of(instruction, argument) if argument in instruction.inputs else None

    def root(self, buffer: Buffer) -> Buffer:
        """The buffer whose memory this one lies in."""
        return self.buffers[buffer.base] if buffer.kind == "view" else buffer

    def rows(self, buffer: Buffer, *, const: bool = True) -> str:
        """`Rows<T>` over a temporary, a view of one, or the output."""
        element = f"const {CPP_TYPES[buffer.dtype]}" if const else CPP_TYPES[buffer.dtype]
        if buffer.kind == "output":
            return f"Rows<{element}>{{step.{buffer.name}, {columns(buffer)}}}"
        base = self.root(buffer)
        if base.kind != "arena":
            raise CodegenError(
                f"buffer {buffer.name} of kind {base.kind} is used as a row-major temporary"
            )
        offset, stride = base.offset, columns(buffer)
        if buffer.kind == "view":
            offset += buffer.offset * DTYPE_BYTES[buffer.dtype]
            stride = buffer.row_stride
        holder = "own" if base.name in self.own else "memory"
        return f"{holder}.rows<{element}>({offset}, {stride})"

    def weight(self, buffer: Buffer | None) -> str:
        """A pointer to a weight; `nullptr` for one that the model does not have."""
        if buffer is None:
            return "nullptr"
        return f"memory.weight<{CPP_TYPES[buffer.dtype]}>({self._numbers[buffer.name]})"

    def packed(self, weight: Buffer) -> str:
        """A pointer to the packed bytes of a quantized weight."""
        return f"memory.weight<std::uint8_t>({self._numbers[weight.name]})"

    def cache(self, keys: Buffer, values: Buffer, *scales: Buffer | None) -> str:
        """`Cache<...>` over a layer's keys and values, shape (pages, kv heads, page size, D), and
        their scales."""
        _, kv_heads, page_size, size = keys.shape
        if keys.dtype != values.dtype or keys.shape != values.shape:
            raise CodegenError(f"caches {keys.name} and {values.name} differ in shape or dtype")
        check_cache(keys)
        element = CPP_TYPES[keys.dtype]
        pointers = map(self._cache_pointer, (keys, values, *scales))
        return f"Cache<{element}, {kv_heads}, {page_size}, {size}>{{{', '.join(pointers)}}}"

    def _cache_pointer(self, cache: Buffer | None) -> str:
        if cache is None:
            return "nullptr"
        return f"memory.cache<{CPP_TYPES[cache.dtype]}>({self._numbers[cache.name]})"


def columns(buffer: Buffer) -> int:
    """Elements of a row."""
    return math.prod(int(dim) for dim in buffer.shape[1:])


def where(instruction: Instruction) -> str:
    """How messages name an instruction."""
    return f"operation {instruction.op} at {instruction.origin or 'the top of the model'}"


def number(value: float) -> str:
    """A float32 literal."""
    text = repr(float(value))
    if not math.isfinite(float(value)):
        raise CodegenError(f"attribute value {text} is not finite")
    return f"{text}f"
