"""lower_activations: activations that no gate took become the op."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from ingot.passes.graph import argument, aten, call_op, calls, replace, value

KINDS = {aten.silu.default: "silu", aten.relu.default: "relu"}


def lower_activations(gm: GraphModule) -> int:
    """Name the activation of a plain MLP.

    Before:
        y = aten.gelu(x, approximate="tanh")
    After:
        y = activation(x, "gelu_tanh")
    """
    nodes = calls(gm, *KINDS, aten.gelu.default)
    for node in nodes:
        with node.graph.inserting_before(node):
            new = call_op(
                node.graph,
                "activation",
                like=node,
                val=value(node),
                x=node.args[0],
                kind=kind(node),
            )
            replace(node, new)
    return len(nodes)


def kind(node: Node) -> str:
    if node.target is aten.gelu.default:
        return "gelu_tanh" if argument(node, 1, "approximate", "none") == "tanh" else "gelu"
    return KINDS[node.target]  # type: ignore[index]
