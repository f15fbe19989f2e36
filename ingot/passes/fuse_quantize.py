"""fuse_quantize: what makes an activation rounds it to int8."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from ingot.artifact.target import Target
from ingot.passes.graph import (
    arguments,
    aten,
    call_op,
    is_call,
    is_op,
    op_calls,
    op_name,
    replace,
    value,
)
from ingot.passes.units import UNIT_COLUMNS

LARGEST_GROUP = 2 * UNIT_COLUMNS  # that a thread has the sums of


def fuse_quantize(gm: GraphModule, *, target: Target) -> int:
    """Fuse the rounding of an activation with the norm, gated product or attention that makes it.

    Nothing else may read what they make. The thread that computes a group rounds it, if groups
    divide its units of columns or its heads.

    Before:
        h = rms_norm(...);  q, s = quantize(h, 128)
        m = quantized_gated_linear(...);  q, s = quantize(m, 128)
        y = paged_attention(...);  q, s = quantize(y, 128)
    After:
        q, s = rms_norm_quantize(..., group=128)
        q, s = quantized_gated_linear_quantize(..., result_group=128)
        q, s = paged_attention_quantize(..., group=128)
    """
    return sum(fuse(node) for node in op_calls(gm, "quantize"))


def fuse(node: Node) -> int:
    x, group = arguments(node).values()
    maker = x.args[0] if is_call(x, aten.reshape.default) else x
    name = group_name(maker, group)
    if not name or any(len(read.users) > 1 for read in (x, maker)):
        return 0
    options = {n: a for n, a in arguments(maker).items() if n != "out_dtype"} | {name: group}
    with node.graph.inserting_before(node):
        new = call_op(node.graph, f"{op_name(maker)}_quantize", like=maker, **options)
    replace(node, new)
    return 1


def group_name(maker: Node, group: int) -> str:
    """What the fused op calls the group, if the threads of `maker` have groups whole."""
    if is_op(maker, "rms_norm"):
        return "group"
    if is_op(maker, "paged_attention"):
        return "" if value(maker).shape[-1] % group else "group"
    if is_op(maker, "quantized_gated_linear") and group <= LARGEST_GROUP:
        columns = max(group, UNIT_COLUMNS)
        whole = columns % group == 0 and value(maker).shape[-1] % columns == 0
        return "result_group" if whole and columns % UNIT_COLUMNS == 0 else ""
    return ""
