"""canonicalize_rows: rows of a flattened batch of one keep their batch."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from ingot.passes.graph import aten, calls, is_call, rank, shape, value

# Calls that work along the last dimension, or on each number, whatever is before it.
BY_ROWS = (
    aten.linear.default,
    aten.add.Tensor,
    aten.mul.Tensor,
    aten.silu.default,
    aten.gelu.default,
    aten.relu.default,
    aten.pow.Tensor_Scalar,
    aten.layer_norm.default,
    aten.rms_norm.default,
)


def canonicalize_rows(gm: GraphModule) -> int:
    """Leave the batch where a module takes it off and puts it on again behind the work on rows.

    Before:
        a = reshape(x, [-1, C]);  y = reshape(linear(a, w) + a, [1, -1, C])
    After:
        y = linear(x, w) + x
    """
    count = 0
    for node in calls(gm, aten.reshape.default):
        inside = flat_rows(node) if takes_batch_off(node) else None
        if inside is None:
            continue
        for each in inside:
            each.meta["val"] = value(each)[None]
        for each in (node, *inside):
            for user in list(each.users):
                if is_call(user, aten.reshape.default) and shape(user) == shape(each):
                    user.replace_all_uses_with(each)
        node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
        count += 1
    return count


def takes_batch_off(node: Node) -> bool:
    """Tells whether it makes [N, C] of [1, N, C]."""
    return rank(node) == 2 and shape(node.args[0]) == (1, *shape(node))  # type: ignore[arg-type]


def flat_rows(node: Node) -> list[Node] | None:
    """Finds what is computed of flat rows until they have a batch again; None if more reads it."""
    inside: dict[Node, None] = {}
    waiting = [node]
    while waiting:
        for user in waiting.pop().users:
            if is_call(user, aten.reshape.default) and shape(user)[:1] == (1,) and rank(user) == 3:
                continue
            if not is_call(user, *BY_ROWS) or rank(user) != 2:
                return None
            if user not in inside:
                inside[user] = None
                waiting.append(user)
    flat = {node, *inside}
    others = (x for user in inside for x in user.all_input_nodes if x not in flat)
    return list(inside) if all(x.op == "get_attr" for x in others) else None
