"""Orders of columns: a matrix whose groups are not neighbours multiplies rows in their order.

Such a matrix is stored with its columns group by group, so that it needs no format of its own. What
it multiplies gets the same order, once for all matrices of a module that read it alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.fx import GraphModule, Node

from ingot.compiler.quantization.graph_matrices import matrix_nodes
from ingot.models.blocks.constants import named_constants, register_constant
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.passes.graph import call_op, value

CONSTANT = "column_order"


def is_order(name: str) -> bool:
    """Whether the constant of that name is an order of columns."""
    return name.endswith(f".{CONSTANT}")


def register_orders(
    module: nn.Module, checkpoint: Checkpoint, kept: Iterable[str]
) -> dict[str, str]:
    """Registers the orders of those matrices that have one, as constants of the module.

    From here on the checkpoint gives these matrices with their columns in that order.

    Returns:
        The name of each such parameter, and that of its order.

    Raises:
        CheckpointError: groups that are no such order, or experts that have one.
    """
    orders: dict[str, str] = {}
    known: dict[tuple[str, bytes], str] = {}
    for name in kept:
        columns = checkpoint.order(name)
        if columns is None:
            continue
        linear = name.rpartition(".")[0]
        alike = linear.rpartition(".")[0], columns.tobytes()
        if alike not in known:
            known[alike] = f"{linear}.{CONSTANT}"
            values = torch.from_numpy(columns).float()
            register_constant(module.get_submodule(linear), CONSTANT, values)
        orders[name] = known[alike]
    if orders:
        checkpoint.read_grouped(orders, named_constants(module))
    return orders


def with_orders(gm: GraphModule, orders: Mapping[str, str]) -> GraphModule:
    """Lets products read rows in the order of their matrix, in place.

    Before:
        q = linear(x, Wq)
    After:
        q = linear(reorder(x, order), Wq)
    """
    made: dict[tuple[Node, str], Node] = {}
    for name, node in matrix_nodes(gm):
        if name not in orders:
            continue
        x, constant = node.args[0], orders[name]
        assert isinstance(x, Node)
        if (x, constant) not in made:
            made[x, constant] = _reordered(gm, node, x, constant)
        node.replace_input_with(x, made[x, constant])
    return gm


def _reordered(gm: GraphModule, product: Node, x: Node, constant: str) -> Node:
    path, _, name = constant.rpartition(".")
    order = value(x).new_empty(value(x).shape[-1:], dtype=torch.float32)
    gm.get_submodule(path).register_buffer(name, torch.empty_like(order, device="meta"))
    with gm.graph.inserting_before(product):
        node = gm.graph.get_attr(constant)
        node.meta["val"] = order
        return call_op(gm.graph, "reorder", like=product, val=value(x), x=x, order=node)
