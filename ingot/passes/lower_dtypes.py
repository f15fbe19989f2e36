"""lower_dtypes: decide what is stored in bfloat16; the residual stream never is."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.target import Target
from ingot.ops import OPS
from ingot.passes.graph import (
    arguments,
    aten,
    call_op,
    final_users,
    op_calls,
    op_name,
    set_arguments,
    signature,
    value,
)
from ingot.passes.inputs import new_value
from ingot.passes.weights import set_parameter

NARROW = torch.bfloat16

# What is narrow: the weights of these ops, these of their arguments, and every cache.
NARROW_WEIGHTS = ("linear", "embedding")
NARROW_ARGUMENTS = (("linear", "x"), ("paged_attention", "q"))
# What hands a value on in the dtype that it came in.
PASSING = (aten.reshape.default, aten.slice.Tensor, OPS["select_rows"].overload)

Use = tuple[Node, Node]  # a reader and what it reads


def lower_dtypes(gm: GraphModule, *, target: Target) -> int:
    """Store weight matrices, what they are multiplied with, queries and caches in bfloat16.

    The op that makes such a value rounds it once, on the way out; where something else needs the
    value, too, a cast does. Embedded tokens, the residual stream, results of linears, norm
    weights, biases, tables and logits stay float32.

    Before:
        h = rms_norm(x, w);  y = linear(h, W)                         W float32
    After:
        h = rms_norm(x, w, out_dtype=bfloat16);  y = linear(h, W)     W bfloat16, y float32
    """
    for node in op_calls(gm, *NARROW_WEIGHTS):
        narrow_weight(gm, arguments(node)["weight"])
    for node in gm.graph.find_nodes(op="placeholder"):
        if is_cache(node):
            node.meta["val"] = new_value(gm, tuple(value(node).shape), NARROW)
    uses = {(node, arguments(node)[name]) for node, name in narrow_arguments(gm)}
    for source in dict.fromkeys(arguments(node)[name] for node, name in narrow_arguments(gm)):
        if not narrow_at_the_maker(source, uses):
            insert_cast(source, [node for node, read in uses if read is source])
    return len(uses)


def is_cache(node: Node) -> bool:
    return value(node).dtype.is_floating_point


def narrow_weight(gm: GraphModule, node: Node) -> None:
    if value(node).dtype != NARROW:
        node.meta["val"] = value(node).to(NARROW)
        set_parameter(gm, str(node.target), node.meta["val"])


def narrow_arguments(gm: GraphModule) -> list[tuple[Node, str]]:
    """(node, argument name) for every argument that has to be narrow, in graph order."""
    names = dict(NARROW_ARGUMENTS)
    return [(node, names[op_name(node)]) for node in op_calls(gm, *names)]


def narrow_at_the_maker(source: Node, uses: set[Use]) -> bool:
    """Let the op that makes a value round it; not if anything else reads the value."""
    result = made(source)
    maker = result.args[0] if result.target is operator.getitem else result
    if not isinstance(maker, Node) or not takes_dtype(maker, result):
        return False
    if not set(final_users(result, *PASSING)) <= uses:
        return False
    set_arguments(maker, out_dtype=NARROW)
    retype(result)
    if maker is not result:
        first, *rest = maker.meta["val"]
        maker.meta["val"] = (first.to(NARROW), *rest)
    return True


def made(node: Node) -> Node:
    """The result of an op that a value is a view or a selection of."""
    while node.target in PASSING:
        node = node.args[0]  # type: ignore[assignment]
    return node


def takes_dtype(maker: Node, result: Node) -> bool:
    """Whether `out_dtype` of the op decides this result: the only one, or the first."""
    name = op_name(maker)
    if not name or "out_dtype" not in signature(name).parameters:
        return False
    return result is maker or result.args[1:] == (0,)


def retype(node: Node) -> None:
    """Give a value, its views and its selections the narrow dtype."""
    node.meta["val"] = value(node).to(NARROW)
    for user in node.users:
        if user.target in PASSING:
            retype(user)


def insert_cast(source: Node, readers: Iterable[Node]) -> None:
    names = dict(NARROW_ARGUMENTS)
    with source.graph.inserting_after(source):
        cast = call_op(source.graph, "cast", like=source, x=source, out_dtype=NARROW)
    for node in readers:
        set_arguments(node, **{names[op_name(node)]: cast})
