"""fuse_gated_linears: the products of a gated MLP hand on what comes out of the gate."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from ingot.artifact.target import Target
from ingot.passes.graph import arguments, aten, call_op, is_call, op_calls, op_name, replace, value
from ingot.passes.units import UNIT_COLUMNS

GATED = {"linear": "gated_linear", "quantized_linear": "quantized_gated_linear"}
GATES = ("silu_mul", "gelu_mul", "relu_mul")


def fuse_gated_linears(gm: GraphModule, *, target: Target) -> int:
    """Fuse a gate with the merged product of its two halves, which nothing else reads.

    The thread that computes columns of the gate computes those of the other half, too, if the
    halves are whole units of columns.

    Before:
        y = linear(x, W), W = [Wg; Wu];  m = silu_mul(slice(y, 2, 0, F), slice(y, 2, F, 2 F))
    After:
        m = gated_linear(x, W, kind="silu")
    """
    return sum(fuse(node) for node in op_calls(gm, *GATES))


def fuse(node: Node) -> int:
    given = arguments(node)
    gate, up = given["gate"], given["up"]
    product = halved(gate, up)
    if product is None or value(gate).shape[-1] % UNIT_COLUMNS:
        return 0
    options = {n: x for n, x in arguments(product).items() if n not in ("residual", "out_dtype")}
    options |= {"kind": kind(node), "out_dtype": given["out_dtype"]}
    with node.graph.inserting_before(node):
        name = GATED[op_name(product)]
        new = call_op(node.graph, name, like=node, val=value(node), **options)
    replace(node, new)
    for dead in (gate, up, product):
        dead.graph.erase_node(dead)
    return 1


def halved(gate: Node, up: Node) -> Node | None:
    """The product that these are the halves of, if nothing else reads it."""
    if not all(is_call(half, aten.slice.Tensor) and len(half.users) == 1 for half in (gate, up)):
        return None
    (product, *first), (other, *second) = gate.args, up.args
    size = value(gate).shape[-1]
    if product is not other or (first, second) != ([2, 0, size], [2, size, 2 * size]):
        return None
    assert isinstance(product, Node)
    alone = op_name(product) in GATED and len(product.users) == 2
    return product if alone and arguments(product)["residual"] is None else None


def kind(node: Node) -> str:
    """The activation of a gate, as plans call it."""
    name = op_name(node).removesuffix("_mul")
    return "gelu_tanh" if arguments(node).get("tanh") else name
