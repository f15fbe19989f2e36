"""Lowers the final graph to the plan: buffers, views, instructions, arena.

The graph keeps the plain module's leading batch of one; the plan drops it. Views never become
instructions: reshapes and column slices are buffers that point into another one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.plan import (
    DTYPE_BYTES,
    Attr,
    Buffer,
    Dim,
    DType,
    Instruction,
    Limits,
    Plan,
)
from ingot.errors import CodegenError, InternalError
from ingot.ops import OPS
from ingot.passes.graph import origin
from ingot.passes.storage import quantized_parameters
from ingot.targets.cpu.memory import lifetimes, plan_memory
from ingot.targets.cpu.memory_check import check_memory
from ingot.targets.cpu.row_wise import lasting_reads

aten = torch.ops.aten

DTYPES: Mapping[torch.dtype, DType] = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.int32: "int32",
    torch.int64: "int32",
    torch.int8: "int8",
}

# Shapes of the step's inputs, by placeholder name.
INPUTS: Mapping[str, tuple[Dim, ...]] = {
    "tokens": ("N",),
    "positions": ("N",),
    "slots": ("N",),
    "query_start": ("S+1",),
    "context_lens": ("S",),
    "page_table": ("S", "P"),
    "logit_rows": ("R",),
}
LOGITS = "logits"
ROOT = "model"  # the origin of what no submodule does, such as selecting rows


def lower(gm: GraphModule, limits: Limits) -> Plan:
    """The plan of the final graph.

    Raises:
        CodegenError: the graph has an operation that no plan instruction stands for.
    """
    return _Lowering(gm, limits).run()


@dataclass(frozen=True, slots=True)
class _Value:
    """Where a node's tensor lies: rows of `base`, from element `offset` of each row on."""

    base: str
    dtype: DType
    rows: Dim
    inner: tuple[int, ...]
    offset: int
    row_stride: int

    def is_dense(self) -> bool:
        return self.offset == 0 and self.row_stride == math.prod(self.inner)


class _Lowering:
    def __init__(self, gm: GraphModule, limits: Limits) -> None:
        self.gm = gm
        self.limits = limits
        self.sources: dict[str, tuple[str, ...]] = gm.meta.get("weight_sources", {})
        self.quantized = quantized_parameters(gm)
        self.values: dict[Node, Any] = {}
        self.buffers: dict[str, Buffer] = {}
        self.instructions: list[Instruction] = []

    def run(self) -> Plan:
        for node in self.gm.graph.nodes:
            self._lower_node(node)
        used = {n for i in self.instructions for n in (*i.inputs.values(), *i.outputs.values())}
        bases = {self.buffers[name].base for name in used} - {""}
        buffers = tuple(b for b in self.buffers.values() if b.name in used | bases)
        plan = Plan(
            limits=self.limits,
            buffers=buffers,
            instructions=tuple(self.instructions),
            memory=plan_memory(()),
        )
        plan = _with_memory(plan)
        check_memory(plan)
        return plan

    def _lower_node(self, node: Node) -> None:
        if node.op == "placeholder":
            self.values[node] = self._input(node)
        elif node.op == "get_attr":
            self.values[node] = self._weight(node)
        elif node.op == "output":
            self._name_logits(node)
        elif node.op != "call_function":
            raise InternalError(f"graph node {node.format_node()} cannot be lowered")
        elif getattr(node.target, "namespace", "") == "ingot":
            self._instruction(node)
        else:
            self.values[node] = self._view(node)

    def _input(self, node: Node) -> _Value:
        value = node.meta["val"]
        name = node.name
        kind = "input" if name in INPUTS else "cache"
        shape = INPUTS.get(name) or self._cache_shape(value)
        dtype = DTYPES[value.dtype]
        self.buffers[name] = Buffer(name=name, dtype=dtype, shape=shape, kind=kind)  # type: ignore[arg-type]
        inner = tuple(d for d in shape[1:] if isinstance(d, int))
        return _Value(name, dtype, shape[0], inner, 0, math.prod(inner))

    def _cache_shape(self, cache: torch.Tensor) -> tuple[Dim, ...]:
        _, kv_heads, _, *head_dim = cache.shape
        return (0, int(kv_heads), self.limits.page_size, *map(int, head_dim))

    def _weight(self, node: Node) -> _Value:
        name = str(node.target)
        value = node.meta["val"]
        shape = tuple(map(int, value.shape))
        part, sources = self.quantized.get(name), self.sources.get(name, (name,))
        dtype, base = (part.dtype, part.inside(name)) if part else (DTYPES[value.dtype], "")
        self.buffers[name] = Buffer(
            name=name, dtype=dtype, shape=shape, kind="weight", base=base, sources=sources
        )
        return _Value(name, dtype, shape[0], shape[1:], 0, math.prod(shape[1:]))

    def _instruction(self, node: Node) -> None:
        op = node.target._schema.name.partition("::")[2]  # type: ignore[union-attr]
        inputs: dict[str, str] = {}
        attrs: dict[str, Attr] = {}
        for name, arg in _bound_arguments(node).items():
            if isinstance(arg, Node):
                inputs[name] = self._buffer_of(arg)
            elif arg is not None and not isinstance(arg, torch.dtype):
                attrs[name] = arg
        rows = self._rows(op, node, inputs)
        results = node.meta["val"]
        results = results if isinstance(results, (tuple, list)) else (results,)
        names = OPS[op].outputs
        outputs = {}
        values = []
        for label, result in zip(names, results if names else (), strict=True):
            name = node.name if len(names) == 1 else f"{node.name}_{label}"
            values.append(self._arena(name, result, rows))
            outputs[label] = name
        self.values[node] = values[0] if len(values) == 1 else tuple(values)
        self.instructions.append(
            Instruction(
                op=op, inputs=inputs, outputs=outputs, attrs=attrs, origin=origin(node) or ROOT
            )
        )

    def _rows(self, op: str, node: Node, inputs: Mapping[str, str]) -> Dim:
        """Rows of an op's results: those of its first argument, except where rows are selected."""
        if op == "select_rows":
            return "R"
        first = next(arg for arg in _bound_arguments(node).values() if isinstance(arg, Node))
        rows: Dim = self.values[first].rows
        return rows

    def _arena(self, name: str, result: torch.Tensor, rows: Dim) -> _Value:
        inner = tuple(map(int, result.shape[2:]))
        dtype = DTYPES[result.dtype]
        self.buffers[name] = Buffer(name=name, dtype=dtype, shape=(rows, *inner), kind="arena")
        return _Value(name, dtype, rows, inner, 0, math.prod(inner))

    def _view(self, node: Node) -> Any:
        source = node.args[0]
        if not isinstance(source, Node):
            raise _stranger(node)
        value = self.values[source]
        if node.target is operator.getitem:
            return value[node.args[1]]
        inner = tuple(map(int, node.meta["val"].shape[2:])) if _has_shape(node) else ()
        if node.target in (aten.view.default, aten.reshape.default):
            return replace(value, inner=inner)
        if node.target is aten.slice.Tensor:
            return self._slice(node, value)
        if node.target is aten.split_with_sizes.default:
            return self._split(node, value)
        raise _stranger(node)

    def _slice(self, node: Node, value: _Value) -> _Value:
        _, dim, start, *_ = (*node.args, 0, 0)
        inner = tuple(map(int, node.meta["val"].shape[2:]))
        return _columns(node, value, int(dim) - 2, int(start), inner)  # type: ignore[arg-type]

    def _split(self, node: Node, value: _Value) -> tuple[_Value, ...]:
        sizes, dim = node.args[1], node.args[2] if len(node.args) > 2 else 0
        rank = len(value.inner) + 2
        axis = int(dim) % rank - 2  # type: ignore[arg-type]
        parts, start = [], 0
        for size in sizes:  # type: ignore[union-attr]
            inner = (*value.inner[:axis], int(size), *value.inner[axis + 1 :])  # type: ignore[arg-type]
            parts.append(_columns(node, value, axis, start, inner))
            start += int(size)  # type: ignore[arg-type]
        return tuple(parts)

    def _buffer_of(self, node: Node) -> str:
        """The buffer that holds a node's tensor, a view of another one where it has to be."""
        value: _Value = self.values[node]
        base = self.buffers[value.base]
        if base.kind in ("weight", "cache", "input") or (
            value.is_dense() and base.shape[1:] == value.inner
        ):
            return value.base
        self.buffers[node.name] = Buffer(
            name=node.name,
            dtype=value.dtype,
            shape=(value.rows, *value.inner),
            kind="view",
            offset=value.offset,
            base=value.base,
            row_stride=value.row_stride,
        )
        return node.name

    def _name_logits(self, node: Node) -> None:
        """The graph's one result leaves the arena for an array of the caller's."""
        (result,) = node.all_input_nodes
        value: _Value = self.values[result]
        last = self.instructions[-1]
        if last.outputs != {"out": value.base} or not value.is_dense():
            raise InternalError("the graph must end with the operation that computes the logits")
        del self.buffers[value.base]
        self.buffers[LOGITS] = Buffer(
            name=LOGITS, dtype=value.dtype, shape=(value.rows, *value.inner), kind="output"
        )
        self.instructions[-1] = replace(last, outputs={"out": LOGITS})


def _columns(node: Node, value: _Value, axis: int, start: int, inner: tuple[int, ...]) -> _Value:
    """A slice of each row: contiguous only along the first dimension after the rows."""
    if axis != 0:
        raise _stranger(node)
    offset = value.offset + start * math.prod(value.inner[1:])
    return replace(value, inner=inner, offset=offset)


def _bound_arguments(node: Node) -> dict[str, Any]:
    """Arguments of an op by their names in its schema, defaults included."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    bound = {a.name: a.default_value for a in schema if a.has_default_value()}
    bound.update(zip((a.name for a in schema), node.args, strict=False))
    bound.update(node.kwargs)
    return {a.name: bound[a.name] for a in schema}


def _with_memory(plan: Plan) -> Plan:
    """The plan with every temporary placed in the arena."""
    buffers = plan.by_name()
    nbytes = {
        b.name: DTYPE_BYTES[b.dtype] * math.prod(map(plan.limits.bound, b.shape))
        for b in plan.of_kind("arena")
    }
    uses = [
        ([_root(buffers, name) for name in reads], list(instruction.outputs.values()))
        for reads, instruction in zip(
            lasting_reads(plan.instructions), plan.instructions, strict=True
        )
    ]
    memory = plan_memory(lifetimes(uses, nbytes))
    offsets = {slot.name: slot.offset for slot in memory.slots}
    placed = tuple(replace(b, offset=offsets.get(b.name, b.offset)) for b in plan.buffers)
    return replace(plan, buffers=placed, memory=memory)


def _root(buffers: Mapping[str, Buffer], name: str) -> str:
    return buffers[name].base or name


def _has_shape(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _stranger(node: Node) -> CodegenError:
    return CodegenError(
        f"operation {node.target} at {origin(node) or ROOT} has no place in the plan",
        hint="Plans hold operations of ingot.ops, reshapes of the dimensions after the rows, and "
        "column slices. Write the module with blocks of ingot.models.blocks, or add an op.",
    )
