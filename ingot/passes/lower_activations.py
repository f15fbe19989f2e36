"""lower_activations: activations that no gate took become the op."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from ingot.passes.graph import argument, aten, call_op, calls, is_call, op_calls, replace, value

KINDS = {aten.silu.default: "silu", aten.relu.default: "relu"}


def lower_activations(gm: GraphModule) -> int:
    """Name the activation of a plain MLP.

    Before:
        y = aten.gelu(x, approximate="tanh");  z = aten.pow(aten.relu(x), 2)
    After:
        y = activation(x, "gelu_tanh");  z = activation(x, "relu2")
    """
    named = len(op_calls(gm, "activation"))
    nodes = [squared(node) for node in calls(gm, *KINDS, aten.gelu.default)]
    for node in nodes:
        with node.graph.inserting_before(node):
            new = call_op(
                node.graph,
                "activation",
                like=node,
                val=value(node),
                x=read_by(node),
                kind=kind(node),
            )
            replace(node, new)
    return named + len(nodes)


def squared(node: Node) -> Node:
    """The square of a call of relu, if nothing else reads it, or else the call."""
    (user, *others) = [*node.users, node]
    is_square = is_call(user, aten.pow.Tensor_Scalar) and user.args[1] == 2
    return user if is_square and len(others) == 1 and is_call(node, aten.relu.default) else node


def read_by(node: Node) -> Node:
    """Finds the input of an activation, also of one that is two calls."""
    (source,) = node.all_input_nodes
    return read_by(source) if is_call(node, aten.pow.Tensor_Scalar) else source


def kind(node: Node) -> str:
    if is_call(node, aten.pow.Tensor_Scalar):
        return "relu2"
    if node.target is aten.gelu.default:
        return "gelu_tanh" if argument(node, 1, "approximate", "none") == "tanh" else "gelu"
    return KINDS[node.target]  # type: ignore[index]
