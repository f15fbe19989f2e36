"""lower_experts: a mixture of experts becomes its two products."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from ingot.passes.graph import arguments, call_op, op_calls, replace, value


def lower_experts(gm: GraphModule) -> int:
    """Name the inner values of experts, which are stored and rounded by themselves.

    Before:
        y = experts(x, shares, gate_up, down, kind=silu, top_k=8)
    After:
        h = expert_gate(x, shares, gate_up, kind=silu, top_k=8)
        y = expert_sum(h, shares, down, top_k=8)
    """
    nodes = op_calls(gm, "experts")
    for node in nodes:
        split(node)
    return len(nodes)


def split(node: Node) -> None:
    given = arguments(node)
    shared = {"shares": given["shares"], "top_k": given["top_k"]}
    with node.graph.inserting_before(node):
        inner = call_op(
            node.graph,
            "expert_gate",
            like=node,
            x=given["x"],
            weight=given["gate_up"],
            bias=given["gate_up_bias"],
            kind=given["kind"],
            limit=given["limit"],
            plain=given["plain"],
            **shared,
        )
        total = call_op(
            node.graph,
            "expert_sum",
            like=node,
            val=value(node),
            x=inner,
            weight=given["down"],
            bias=given["down_bias"],
            **shared,
        )
    replace(node, total)
