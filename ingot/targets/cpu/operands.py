"""C++ expressions for the buffers of a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ingot.artifact.formats import stored_bytes
from ingot.artifact.plan import Buffer, Instruction, Plan, arrays_of, scales_offset
from ingot.artifact.spec import SYMBOLS, Array, Dim
from ingot.errors import CodegenError
from ingot.targets.cpu.call import place
from ingot.targets.cpu.limits import MAX_LATENT_SIZE, check_cache
from ingot.targets.cpu.work import CpuWork, work_of
from ingot.targets.shared_weights import matrices_of
from ingot.targets.work import memory_of, where

CPP_TYPES: Mapping[str, str] = {
    "float32": "float",
    "bfloat16": "bf16",
    "int32": "int",
    "int16": "std::int16_t",
    "int8": "std::int8_t",
}


@dataclass(frozen=True)
class Operands:
    """Looks up buffers of a plan and spells them in C++.

    The generated function has these variables: `memory` (weights, caches, arena); `own`, which is
    `memory` with the thread's own arena in a step of few rows; `step` (inputs and outputs); and the
    symbols N and R.
    """

    plan: Plan

    @cached_property
    def work(self) -> tuple[CpuWork, ...]:
        """The kernels of the plan."""
        return work_of(self.plan)

    @cached_property
    def _weights(self) -> Mapping[str, int]:
        return {buffer.name: n for n, buffer in enumerate(self.plan.of_kind("weight"))}

    @cached_property
    def _states(self) -> Mapping[str, int]:
        """For each state, the number of its first array."""
        numbers, count = {}, 0
        for state in self.plan.of_kind("state"):
            numbers[state.name] = count
            count += len(arrays_of(state.format, (0,)))
        return numbers

    @cached_property
    def own(self) -> frozenset[str]:
        """The temporaries that row-wise kernels write."""
        written = (n for kernel in self.work if kernel.is_row_wise for n in kernel.writes)
        return frozenset(root.name for n in written if (root := memory_of(self.plan, n)))

    @cached_property
    def matrices(self) -> frozenset[str]:
        """Weights that rows are multiplied with."""
        return matrices_of(self.plan)

    def of(self, instruction: Instruction, argument: str) -> Buffer:
        """The buffer bound to an argument or a result of an instruction."""
        name = instruction.inputs.get(argument) or instruction.outputs.get(argument)
        if name is None:
            raise CodegenError(f"{where(instruction)} has no operand {argument!r}")
        return self.plan.buffer(name)

    def optional(self, instruction: Instruction, argument: str) -> Buffer | None:
        return self.of(instruction, argument) if argument in instruction.inputs else None

    def rows(self, buffer: Buffer, *, const: bool = True) -> str:
        """`Rows<T>` over a temporary, a view of one, or the output."""
        element = _element(buffer.dtype, const=const)
        if buffer.kind == "output":
            return f"Rows<{element}>{{{self.output(buffer.name)}, {buffer.columns}}}"
        holder, offset = self._place(buffer)
        stride = buffer.columns
        if buffer.kind == "view":
            offset += stored_bytes(buffer.dtype, buffer.offset)
            stride = buffer.row_stride
        return f"{holder}.rows<{element}>({place(offset)}, {stride})"

    def input(self, name: str) -> str:
        """A pointer to an input of the step."""
        return _array("input", self.plan.spec.inputs, name)

    def output(self, name: str) -> str:
        """A pointer to an output of the step."""
        return _array("output", self.plan.spec.outputs, name)

    def count(self, dim: Dim) -> str:
        """Size of a dimension in a step, as C++ reads it."""
        return str(dim) if isinstance(dim, int) else f"step.{SYMBOLS[dim].name}"

    def scales(self, buffer: Buffer, *, const: bool = True) -> str:
        """`Rows<float>` over the scales of a temporary in integers."""
        holder, offset = self._place(buffer)
        offset += scales_offset(buffer.format, [*map(self.plan.limits.bound, buffer.shape)])
        *parts, columns = map(int, buffer.shape[1:])
        stride = math.prod(parts) * buffer.format.blocks_of(columns)
        element = _element(buffer.format.scale, const=const)
        return f"{holder}.rows<{element}>({place(offset)}, {stride})"

    def _place(self, buffer: Buffer) -> tuple[str, int]:
        """The variable that holds a temporary, and its byte offset."""
        root = memory_of(self.plan, buffer.name)
        if root is None:
            raise CodegenError(
                f"buffer {buffer.name} of kind {self.plan.root(buffer.name).kind} is used as a "
                "row-major temporary"
            )
        return "own" if root.name in self.own else "memory", root.offset

    def weight(self, buffer: Buffer | None) -> str:
        """A pointer to a weight; `nullptr` for one that the model does not have."""
        if buffer is None:
            return "nullptr"
        element = "std::uint8_t" if buffer.format.is_scaled else CPP_TYPES[buffer.dtype]
        return f"memory.weight<{element}>({place(self._weights[buffer.name])})"

    def cache(self, keys: Buffer, values: Buffer) -> str:
        """`Cache<...>` over a layer's keys and values, shape (pages, kv heads, page size, D)."""
        _, kv_heads, page_size, size = keys.shape
        if keys.format != values.format or keys.shape != values.shape:
            raise CodegenError(f"caches {keys.name} and {values.name} differ in shape or format")
        check_cache(keys)
        pointers = [self.state(state, 0) for state in (keys, values)]
        pointers += [self.state(state, 1) for state in (keys, values)]
        element = CPP_TYPES[keys.dtype]
        return f"Cache<{element}, {kv_heads}, {page_size}, {size}>{{{', '.join(pointers)}}}"

    def latent_cache(self, rows: Buffer, value_size: int) -> str:
        """`LatentCache<...>` over a layer's rows, shape (pages, 1, page size, D)."""
        _, _, page_size, size = rows.shape
        check_cache(rows, MAX_LATENT_SIZE, "latent rows")
        element, block = CPP_TYPES[rows.dtype], rows.format.block or size
        constants = f"{element}, {page_size}, {size}, {value_size}, {block}"
        pointers = ", ".join(self.state(rows, index) for index in range(2))
        return f"LatentCache<{constants}>{{{pointers}}}"

    def state(self, state: Buffer, index: int = 0) -> str:
        """A pointer to one array of a state; `nullptr` for scales that the state does not have."""
        dtypes = [dtype for dtype, _ in arrays_of(state.format, (0,))]
        if index >= len(dtypes):
            return "nullptr"
        number = place(self._states[state.name] + index)
        return f"memory.cache<{CPP_TYPES[dtypes[index]]}>({number})"


def _array(kind: str, arrays: Sequence[Array], name: str) -> str:
    """A pointer to an array of a program, by its place in the spec."""
    place, array = next((n, each) for n, each in enumerate(arrays) if each.name == name)
    return f"{kind}<{CPP_TYPES[array.dtype]}>(step, {place} /* {name} */)"


def _element(dtype: str, *, const: bool) -> str:
    return f"const {CPP_TYPES[dtype]}" if const else CPP_TYPES[dtype]


def number(value: float) -> str:
    """A float32 literal."""
    text = repr(float(value))
    if not math.isfinite(float(value)):
        raise CodegenError(f"attribute value {text} is not finite")
    return f"{text}f"
