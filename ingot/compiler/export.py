"""Export: a plain module on the meta device becomes a graph of ATen and ingot calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from ingot.compiler.layers import all_tensors, find_layers
from ingot.compiler.record import Recorder
from ingot.compiler.repeat import repeat
from ingot.errors import ExportError, IngotError
from ingot.models.foreign.config import AnyConfig
from ingot.passes.graph import NUMBER

EXAMPLE_TOKENS = 8
# What a node's `meta` holds; see `ingot.passes.graph`.
KEPT = ("val", "nn_module_stack")
# Fewer and more than any number that a model's code compares or cuts to; tensors on the meta device
# may be of any size.
RECORDED_TOKENS = (3, 1_000_003)


def export(module: nn.Module, config: AnyConfig) -> GraphModule:
    """The graph of `forward(input_ids, positions) -> logits` for any number of tokens.

    Args:
        module: a plain module on the meta device; input_ids and positions are int64 [1, T].
        config: the model's config, for the error.

    Returns:
        A flat graph with the inputs `input_ids` and `positions` and one result, [1, T, V].
        Parameters and constants are read by get_attr under the module's own names, and every node's
        `nn_module_stack` tells the module that it comes from.

    Raises:
        ExportError: the module cannot be captured as one graph.
    """
    module.eval()
    graph = repeated(module)
    if graph is not None:
        return graph
    try:
        return flatten(capture(module))
    except IngotError:
        raise
    except Exception as error:
        from ingot.compiler.export_fault import described, fault_of  # rarely needed

        raise ExportError(
            f"{config.architecture} cannot be exported: "
            f"{fault_of(module, EXAMPLE_TOKENS) or described(error)}",
            hint="A model is a plain module: no branch or loop on values of tensors or on the "
            "number of tokens, no cache, no mask.",
        ) from error


def repeated(module: nn.Module) -> GraphModule | None:
    """The graph by way of an export of one layer of each kind; None where that is another graph.

    Records of the module and of the graph must be equal. So a module may do with its layers what
    it likes: call one twice, skip one, or treat the last in a way of its own.
    """
    try:
        layers = find_layers(module)
        if layers is None:
            return None
        with layers.shortened():
            short = flatten(capture(module))
        gm = GraphModule(module, repeat(short.graph, module, layers))
        same = all(makes_same_calls(module, gm, count) for count in RECORDED_TOKENS)
    except Exception:  # of whatever sort: exporting the whole module tells what is wrong with it
        return None
    return gm if same else None


def makes_same_calls(module: nn.Module, gm: GraphModule, num_tokens: int) -> bool:
    """Returns whether the module and the graph make the same calls in the same order."""
    recorder = Recorder(all_tensors(module), num_tokens)
    return recorder.record(module) == recorder.record(gm)


def capture(module: nn.Module) -> torch.export.ExportedProgram:
    """PyTorch's export with a symbolic number of tokens; the batch of one is constant."""
    tokens = torch.export.Dim("tokens", min=1)
    # Two tensors: one passed twice would become one input.
    shape = (1, EXAMPLE_TOKENS)
    examples = tuple(torch.zeros(shape, dtype=torch.int64, device="meta") for _ in range(2))
    with torch.no_grad():
        return torch.export.export(
            module, examples, dynamic_shapes=({1: tokens}, {1: tokens}), strict=False
        )


def flatten(program: torch.export.ExportedProgram) -> GraphModule:
    """A plain graph module: parameters as attributes, no guards, one result."""
    unlifted: Any = program.module(check_guards=False)
    graph = unlifted.graph
    graph.set_codegen(torch.fx.graph.CodeGen())
    output = graph.output_node()
    (result,) = output.all_input_nodes or [None]
    output.args = (result,)
    for node, name in zip(
        graph.find_nodes(op="placeholder"), ("input_ids", "positions"), strict=True
    ):
        node.target = name
        node._rename(name)
    if graph.eliminate_dead_code():
        graph = counted(graph)
    for node in graph.nodes:
        node.meta = {key: node.meta[key] for key in KEPT if key in node.meta}
    return GraphModule(unlifted, graph)


def counted(graph: Graph) -> Graph:
    """The same graph with names of calls that count up without a gap."""
    new, copies = Graph(), dict[Node, Node]()
    for node in graph.nodes:
        args, kwargs = (map_arg(given, copies.__getitem__) for given in (node.args, node.kwargs))
        name = NUMBER.sub("", node.name) if node.op == "call_function" else node.name
        copies[node] = new.create_node(node.op, node.target, args, kwargs, name=name)
        copies[node].meta = node.meta
    return new
