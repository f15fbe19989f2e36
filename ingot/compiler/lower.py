"""Lowers the final graph to a plan: buffers, views and instructions; targets do the rest.

The graph keeps the plain module's leading batch of one; the plan drops it. Views never become
instructions: reshapes and column slices are buffers that point into another one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.formats import DType, Format, Storage
from ingot.artifact.plan import Attr, Buffer, Instruction, Limits, Plan
from ingot.artifact.spec import Array, Dim, Spec, State
from ingot.artifact.traits import TRAITS
from ingot.compiler.quantization.choose import agreed
from ingot.errors import CodegenError, InternalError
from ingot.ops.dtypes import NAMES
from ingot.passes.graph import arguments, aten, op_name, origin, program_of, states_of
from ingot.passes.weights import sources

ROOT = "model"  # the origin of what no submodule does, such as selecting rows


def lower(
    gm: GraphModule,
    limits: Limits,
    storage: Mapping[str, Storage] | None = None,
    *,
    int8_states: bool = False,
) -> Plan:
    """The plan of the final graph.

    Args:
        storage: how those of the model's parameters are stored that are to be integers.
        int8_states: store keys and values in int8; a head of a token has a scale, or several.

    Raises:
        CodegenError: the graph has an operation that no instruction stands for.
        UsageError: parameters that are stacked into one are to be stored in different ways.
    """
    return _Lowering(gm, limits, storage or {}, int8_states).run()


@dataclass(frozen=True, slots=True)
class _Value:
    """Location of a node's tensor: rows of `base`, from element `offset` of each row on."""

    base: str
    dtype: DType
    rows: Dim
    inner: tuple[int, ...]
    offset: int
    row_stride: int

    def is_dense(self) -> bool:
        return self.offset == 0 and self.row_stride == math.prod(self.inner)


@dataclass(slots=True)
class _Lowering:
    gm: GraphModule
    limits: Limits
    storage: Mapping[str, Storage]
    int8_states: bool
    spec: Spec = field(default_factory=Spec)
    values: dict[Node, _Value] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)

    def run(self) -> Plan:
        for node in self.gm.graph.nodes:
            self._lower_node(node)
        self._refuse_unread()
        used = {n for i in self.instructions for n in (*i.inputs.values(), *i.outputs.values())}
        bases = {self.buffers[name].base for name in used & self.buffers.keys()}
        return Plan(
            limits=self.limits,
            spec=self.spec,
            buffers=tuple(b for b in self.buffers.values() if b.name in used | bases),
            instructions=tuple(self.instructions),
        )

    def _lower_node(self, node: Node) -> None:
        if node.op == "placeholder":
            self.values[node] = self._input(node)
        elif node.op == "get_attr":
            self.values[node] = self._weight(node)
        elif node.op == "output":
            self._outputs(node)
        elif node.op != "call_function":
            raise InternalError(f"graph node {node.format_node()} cannot be lowered")
        elif op_name(node):
            self._instruction(node)
        else:
            self.values[node] = self._view(node)

    def _input(self, node: Node) -> _Value:
        states, program = states_of(self.gm), program_of(self.gm)
        known = {array.name: array for array in program.inputs}
        if node.name in states:
            state, plain = states[node.name], plain_format(node.meta["val"])
            return self._state(state if self.int8_states else replace(state, format=plain))
        if node.name not in known:
            found = f"the graph has an input {node.name}"
            raise InternalError(f"{found} that the program {program.name} is not given")
        array = known[node.name]
        self.spec = replace(self.spec, inputs=(*self.spec.inputs, array))
        return _Value(array.name, array.dtype, array.shape[0], (), 0, 1)

    def _state(self, state: State) -> _Value:
        self.spec = replace(self.spec, states=(*self.spec.states, state))
        rows, *inner = state.shape(self.limits.page_size)
        sizes = tuple(map(int, inner))
        return _Value(state.name, state.format.dtype, rows, sizes, 0, math.prod(sizes))

    def _weight(self, node: Node) -> _Value:
        name = str(node.target)
        value = node.meta["val"]
        shape = tuple(map(int, value.shape))
        made_of = sources(self.gm, name)
        stored = agreed(name, made_of, self.storage)
        form = plain_format(value) if stored is None else stored.of(shape[-1])
        self.buffers[name] = Buffer(
            name=name, format=form, shape=shape, kind="weight", sources=made_of
        )
        return _Value(name, form.dtype, shape[0], shape[1:], 0, math.prod(shape[1:]))

    def _refuse_unread(self) -> None:
        """Integers are for weights that ops read as matrices and tables, and all must be found."""
        reads = [
            (self.buffers[name], argument in TRAITS[i.op].integers)
            for i in self.instructions
            for argument, name in i.inputs.items()
            if name in self.buffers and self.buffers[name].format.is_scaled
        ]
        wrong = {buffer.name for buffer, fits in reads if not fits}
        found = {part for buffer, _ in reads for part in buffer.sources}
        for name in sorted(wrong | (self.storage.keys() - found)):
            raise InternalError(f"{name} is no matrix that can be stored in integers")

    def _instruction(self, node: Node) -> None:
        op, given = op_name(node), arguments(node)
        inputs = {n: self._buffer_of(arg) for n, arg in given.items() if isinstance(arg, Node)}
        attrs: dict[str, Attr] = {
            name: arg
            for name, arg in given.items()
            if not (arg is None or isinstance(arg, (Node, torch.dtype)))
        }
        outputs = dict.fromkeys(TRAITS[op].outputs, node.name)
        if outputs:
            self.values[node] = self._arena(node, self.values[given[TRAITS[op].multiplied]].rows)
        self.instructions.append(
            Instruction(
                op=op, inputs=inputs, outputs=outputs, attrs=attrs, origin=origin(node) or ROOT
            )
        )

    def _arena(self, node: Node, rows: Dim) -> _Value:
        name, result = node.name, node.meta["val"]
        inner = tuple(map(int, result.shape[2:]))
        form = plain_format(result)
        self.buffers[name] = Buffer(name=name, format=form, shape=(rows, *inner), kind="arena")
        return _Value(name, form.dtype, rows, inner, 0, math.prod(inner))

    def _view(self, node: Node) -> _Value:
        source = node.args[0]
        if not isinstance(source, Node) or not isinstance(node.meta.get("val"), torch.Tensor):
            raise _stranger(node)
        value = self.values[source]
        inner = tuple(map(int, node.meta["val"].shape[2:]))
        if node.target is aten.reshape.default:
            return replace(value, inner=inner)
        if node.target is not aten.slice.Tensor or node.args[1] != 2:
            raise _stranger(node)  # rows of slices are contiguous only along their first dimension
        offset = value.offset + operator.index(node.args[2]) * math.prod(value.inner[1:])  # type: ignore[arg-type]
        return replace(value, inner=inner, offset=offset)

    def _buffer_of(self, node: Node) -> str:
        """The buffer that holds a node's tensor, a view of another one where it has to be."""
        value = self.values[node]
        base = self.buffers.get(value.base)
        if base is None or base.kind == "weight":
            return value.base
        if value.is_dense() and base.shape[1:] == value.inner:
            return value.base
        self.buffers[node.name] = Buffer(
            name=node.name,
            format=base.format,
            shape=(value.rows, *value.inner),
            kind="view",
            offset=value.offset,
            base=value.base,
            row_stride=value.row_stride,
        )
        return node.name

    def _outputs(self, node: Node) -> None:
        """The graph's results leave the arena for arrays of the caller's."""
        program = program_of(self.gm)
        results = node.all_input_nodes
        if len(results) != len(program.outputs):
            names = ", ".join(array.name for array in program.outputs)
            raise InternalError(
                f"{program.name} gives {names}, and the graph {len(results)} values"
            )
        for result, array in zip(results, program.outputs, strict=True):
            self._output(self.values[result], array)

    def _output(self, value: _Value, array: Array) -> None:
        """The rows of a result, which nothing else may read, are written where the caller says."""
        maker = next((i for i in self.instructions if value.base in i.outputs.values()), None)
        read = any(value.base in i.inputs.values() for i in self.instructions)
        if maker is None or read or not value.is_dense():
            raise InternalError(f"no operation of the graph has {array.name} for its result alone")
        del self.buffers[value.base]
        shape = (value.rows, *value.inner)
        made = replace(array, dtype=value.dtype, shape=shape)
        self.spec = replace(self.spec, outputs=(*self.spec.outputs, made))
        index = self.instructions.index(maker)
        self.instructions[index] = replace(maker, outputs={"out": array.name})


def plain_format(value: torch.Tensor) -> Format:
    """The format of numbers that are stored as they are."""
    return Format(NAMES[value.dtype])


def _stranger(node: Node) -> CodegenError:
    return CodegenError(
        f"operation {node.target} at {origin(node) or ROOT} has no place in the plan",
        hint="Plans hold primitives, reshapes of the dimensions after the rows, and column slices. "
        "Write the module with blocks of ingot.models.blocks, or add a primitive.",
    )
