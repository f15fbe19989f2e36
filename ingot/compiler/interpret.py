"""The interpreter of plans: what a plan says, word for word, by the references of its primitives.

It runs a plan before and after a target's rewriting, grouped or not. Temporaries that have a place
in the arena lie there, in one real arena filled with NaN; all others have memory of their own.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ingot.artifact.formats import DType, Format
from ingot.artifact.plan import Buffer, Instruction, Plan, scales_offset
from ingot.artifact.spec import Dim
from ingot.compiler.quantization.search import quantize_rows
from ingot.ops import OPS
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.ops.scaled import Scaled, from_planes, round_to, to_planes

Value = Tensor | Scaled
Read = Callable[[str], Tensor]
States = dict[str, Value]
References = Mapping[str, Callable[..., Any]]


def interpret(
    plan: Plan,
    weights: Callable[[Buffer], Value],
    inputs: Mapping[str, Tensor],
    states: States,
    references: References = MappingProxyType({}),
) -> list[dict[str, Value]]:
    """Runs a step.

    Args:
        weights: gives each weight of the plan; see `plan_weights`.
        inputs: the step's arrays by name, without a batch; see `ingot.ops.steps.step_inputs`.
        states: memory that outlives the step, written in place; see `new_states`.
        references: what computes an op, by its name; by default its own reference.

    Returns:
        For every instruction its results, by the names of their buffers.

    Raises:
        ValueError: the step is larger than the plan's limits, and temporaries would overlap.
    """
    with torch.inference_mode():
        step = Step(plan, weights, inputs, states, references=references)
        return [step.run(instruction) for instruction in plan.instructions]


def plan_logits(
    plan: Plan,
    weights: Callable[[Buffer], Value],
    inputs: Mapping[str, Tensor],
    states: States,
    references: References = MappingProxyType({}),
) -> Tensor:
    """Logits [R, V] of a step; see `interpret`."""
    (array,) = plan.spec.outputs
    logits = interpret(plan, weights, inputs, states, references)[-1][array.name]
    assert isinstance(logits, Tensor)
    return logits


def plan_weights(read: Read) -> Callable[[Buffer], Value]:
    """A plan's weights, from the model's parameters by name: stacked, and rounded as it says.

    Integers are found by search. Each weight is made anew whenever it is asked for.
    """

    def weight(buffer: Buffer) -> Value:
        whole = torch.cat([read(name) for name in buffer.sources or (buffer.name,)])
        if buffer.format.is_scaled:
            return quantize_rows(whole, buffer.format)
        return whole.to(TORCH_DTYPES[buffer.dtype])

    return weight


def new_states(plan: Plan, num_pages: int) -> States:
    """Memory for a plan's states, of so many pages and as many slots; full of NaN, or of zeros with
    scales that are NaN."""
    return {
        state.name: _empty(state.format, (num_pages, *map(plan.limits.bound, state.shape[1:])))
        for state in plan.of_kind("state")
    }


def _empty(form: Format, shape: tuple[int, ...]) -> Value:
    if not form.is_scaled:
        return torch.full(shape, math.nan, dtype=TORCH_DTYPES[form.dtype])
    scales = torch.full((*shape[:-1], form.blocks_of(shape[-1])), math.nan)
    return Scaled(torch.zeros(shape, dtype=torch.int8), None, scales, block=form.block)


class Step:
    """One run of a plan: its inputs, its arena, and what lies elsewhere, in `values` by name.

    `arena` is one to look into, uint8; None for a new one.
    """

    def __init__(
        self,
        plan: Plan,
        weights: Callable[[Buffer], Value],
        inputs: Mapping[str, Tensor],
        states: States,
        arena: Tensor | None = None,
        references: References = MappingProxyType({}),
    ) -> None:
        self.plan = plan
        self.references = references
        self.weights = weights
        self.arena = _new_arena(plan) if arena is None else arena
        self.placed = {slot.name for slot in plan.memory.slots}
        self.values: dict[str, Value] = {**inputs, **states}
        self.sizes = {
            dim: size
            for array in plan.spec.inputs
            for dim, size in zip(array.shape, inputs[array.name].shape, strict=True)
        }
        for dim, size in self.sizes.items():
            bound = plan.limits.bound(dim)
            if self.placed and size > bound:
                raise ValueError(f"{dim} is {size}, the arena has room for {bound}")
        self.batched = {array.name for array in plan.spec.inputs if array.plain}

    def run(self, instruction: Instruction) -> dict[str, Value]:
        """Runs an instruction; returns its results by buffer name. No later one changes them."""
        op = OPS[instruction.op]
        given: dict[str, Any] = {
            name: None if parameter.default is inspect.Parameter.empty else parameter.default
            for name, parameter in op.signature.parameters.items()
        }
        given |= instruction.attrs
        given |= {argument: self.operand(name) for argument, name in instruction.inputs.items()}
        outs = [self.plan.buffer(name) for name in instruction.outputs.values()]
        if not outs:
            op.reference(**given)
            return {}
        (out,) = outs
        if out.format.is_scaled:
            result: Value = round_to(given["x"], out.format)
        else:
            if "out_dtype" in given:
                given["out_dtype"] = TORCH_DTYPES[out.dtype]
            result = self.references.get(op.name, op.reference)(**given)
        self.store(out, result[0])
        return {out.name: result[0]}

    def operand(self, name: str) -> Value:
        """A buffer as references take it: rows of tokens have a batch of one."""
        buffer = self.plan.buffer(name)
        if buffer.kind == "weight":
            return self.weights(buffer)
        if buffer.kind == "state" or (buffer.kind == "input" and name not in self.batched):
            return self.values[name]
        return self.memory(buffer)[None]

    def store(self, buffer: Buffer, value: Value) -> None:
        if self.plan.root(buffer.name).name not in self.placed:
            self.values[buffer.name] = value
        elif isinstance(value, Scaled) and buffer.format.dtype == "int16":
            planes, scales = self._planes(buffer)
            planes[:], scales[:] = to_planes(value.values), value.scales
        else:
            self.memory(buffer)[:] = value  # type: ignore[assignment]

    def memory(self, buffer: Buffer) -> Value:
        """Memory of a buffer: rows of the arena, or an array of its own."""
        root = self.plan.root(buffer.name)
        shape = tuple(map(self.size, buffer.shape))
        stride = buffer.row_stride if buffer.kind == "view" else root.columns
        if root.name not in self.placed:
            own = self.values[root.name]
            if isinstance(own, Scaled):
                return own
            return _rows(own.reshape(-1), shape, stride, buffer.offset)
        form = root.format
        if form.dtype == "int16":
            planes, scales = self._planes(root)
            return Scaled(from_planes(planes), None, scales, block=form.block)
        values = _in_arena(self.arena, form.dtype, root.offset)
        if not form.is_scaled:
            offset = buffer.offset if buffer.kind == "view" else 0
            return _rows(values, shape, stride, offset)
        values = _rows(values, shape, stride, 0)
        return Scaled(values, None, self._scales(root, shape), block=form.block)

    def _planes(self, buffer: Buffer) -> tuple[Tensor, Tensor]:
        """The bytes of a buffer in int16 [..., 2, K], and its scales."""
        *outer, columns = map(self.size, buffer.shape)
        shape = (*outer, 2, columns)
        stored = _rows(_in_arena(self.arena, "int8", buffer.offset), shape, math.prod(shape[1:]), 0)
        return stored, self._scales(buffer, (*outer, columns))

    def _scales(self, buffer: Buffer, shape: tuple[int, ...]) -> Tensor:
        """The scales of a buffer in the arena that has this shape."""
        form, bound = buffer.format, [*map(self.plan.limits.bound, buffer.shape)]
        stored = _in_arena(self.arena, form.scale, buffer.offset + scales_offset(form, bound))
        blocks = form.blocks_of(shape[-1])
        return _rows(stored, (*shape[:-1], blocks), math.prod(shape[1:-1]) * blocks, 0)

    def size(self, dim: Dim) -> int:
        return dim if isinstance(dim, int) else self.sizes[dim]


def _new_arena(plan: Plan) -> Tensor:
    return torch.full((plan.memory.arena_bytes,), 0xFF, dtype=torch.uint8)


def _in_arena(arena: Tensor, dtype: DType, offset: int) -> Tensor:
    """The arena from a byte on, as numbers of a dtype."""
    width = TORCH_DTYPES[dtype].itemsize
    end = arena.numel() // width * width
    return arena[offset:end].view(TORCH_DTYPES[dtype])


def _rows(flat: Tensor, shape: tuple[int, ...], stride: int, offset: int) -> Tensor:
    """Rows of `shape` that lie `stride` elements apart, from element `offset` on."""
    inner = [math.prod(shape[i + 1 :]) for i in range(1, len(shape))]
    return flat.as_strided(shape, [stride, *inner], flat.storage_offset() + offset)
