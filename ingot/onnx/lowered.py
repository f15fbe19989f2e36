"""A model as the export takes it: its graph, the same in primitives, and its weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

import torch
from torch import Tensor
from torch.fx import GraphModule

from ingot.artifact.formats import DType, Storage
from ingot.artifact.programs import HIDDEN
from ingot.artifact.traits import Role
from ingot.compiler.export import export
from ingot.compiler.model import OpenModel, family_config, storage_of
from ingot.compiler.options import Clock
from ingot.compiler.orders import with_orders
from ingot.compiler.program_graphs import blocks_of, pooled_states
from ingot.compiler.quantization.store import QuantizedWeights
from ingot.errors import ExportError
from ingot.models.counts import module_counts
from ingot.onnx.integers import Integers, fits, narrowest
from ingot.onnx.weights import OnnxMatrix, Vector, Weight, Weights
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.ops.scaled import Operand
from ingot.passes import runner
from ingot.passes.graph import arguments, op_nodes
from ingot.passes.pipeline import pipeline

# From here on the passes are about machines: larger products, pages, rounding.
END = "merge_linears"


@dataclass(frozen=True, slots=True)
class Lowered:
    """`reference` is the exported graph, `primitives` the same after the passes that find
    primitives; `storage` says which matrices are stored in integers."""

    reference: GraphModule
    primitives: GraphModule
    storage: dict[str, Storage]


def lower(model: OpenModel, clock: Clock) -> Lowered:
    """Exports the module of a model, and runs the passes that find primitives."""
    config, pooler, called = model.config, model.pooler, None
    with clock.stage("export", f"{config.architecture}, {config.num_layers} layers"):
        graph = with_orders(export(model.module, config), model.orders)
        if pooler is not None and family_config(model).head is None:
            graph = pooled_states(graph, pooler.pooling)
            called = blocks_of(graph, HIDDEN)
        refuse_stacks(graph, config.architecture)
        reference = GraphModule(graph, deepcopy(graph.graph))
    chosen = storage_of(model, reference, fits)
    storage = {name: narrowest(each) for name, each in chosen.items()}
    with clock.stage("passes", "arithmetic to primitives"):
        passes = takewhile(lambda each: each.name != END, pipeline())
        runner.run(graph, list(passes), module_counts(model.module, called))
    return Lowered(reference, graph, storage)


def refuse_stacks(graph: GraphModule, architecture: str) -> None:
    """Raises ExportError for products with a few of many matrices: no operator of ONNX reads only
    those that rows pick."""
    for node, traits in op_nodes(graph):
        if traits.stacked:
            raise ExportError(
                f"{architecture} calls {node.target}, which ONNX has no operator for",
                hint="Models with experts run as artifacts of ingot: ingot compile.",
            )


def make_weights(
    lowered: Lowered,
    shapes: Mapping[str, tuple[int, ...]],
    stored: DType,
    weights: QuantizedWeights,
    wide: Collection[str] = (),
) -> Weights:
    """The weights that the graph reads; matrices that are not in integers are in `stored`, and
    products with those in `wide` in float32."""
    graph = lowered.primitives
    dtype = TORCH_DTYPES[stored]
    tables = {
        str(arguments(node)[name].target)
        for node, traits in op_nodes(graph)
        for name in traits.arguments(Role.TABLE)
    }
    names = dict.fromkeys(str(node.target) for node in graph.graph.find_nodes(op="get_attr"))

    def made(name: str) -> Weight:
        shape = shapes[name]
        if name in lowered.storage:
            form = lowered.storage[name].of(shape[1])
            narrow = dtype == torch.float16 and name not in wide
            scales = torch.float16 if narrow else torch.float32
            return Integers(shape, form, scales, partial(weights.matrix, name))
        read = partial(weights.read, name)
        if len(shape) == 2:
            return OnnxMatrix(shape, dtype, read, turned=name not in tables)
        return Vector(shape, read)

    found = {name: made(name) for name in names}
    for name in wide:
        found[name].wide = True
    return Weights(found)


def as_stored(weights: QuantizedWeights, stored: DType) -> Callable[[str], Operand]:
    """Reads parameters as the numbers that an export holds."""
    dtype = TORCH_DTYPES[stored]

    def read(name: str) -> Operand:
        value = weights.stored(name)
        is_matrix = isinstance(value, Tensor) and value.ndim == 2
        return value.to(dtype) if is_matrix else value  # type: ignore[union-attr]

    return read
