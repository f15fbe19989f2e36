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

# What is narrow: the weights of these ops, these of their arguments, and every cache.
NARROW_WEIGHTS = ("linear", "embedding")
NARROW_ARGUMENTS = (("linear", "x"), ("paged_attention", "q"))
# What hands a value on in the dtype that it came in.
PASSING = (aten.reshape.default, aten.slice.Tensor, OPS["select_rows"].overload)

Use = tuple[Node, Node]  # a reader and what it reads


def lower_dtypes(gm: GraphModule, *, target: Target, dtype: torch.dtype) -> int:
    """Store weight matrices, what they are multiplied with, queries and caches in `dtype`.

    The op that makes such a value rounds it once, on the way out; where something else needs the
    value, too, a cast does. Embedded tokens, the residual stream, results of linears, norm
    weights, biases, tables and logits stay float32.

    Before:
        h = rms_norm(x, w);  y = linear(h, W)                         W float32
    After:
        h = rms_norm(x, w, out_dtype=bfloat16);  y = linear(h, W)     W bfloat16, y float32
    """
    if dtype == torch.float32:
        return 0
    for node in op_calls(gm, *NARROW_WEIGHTS):
        narrow_weight(gm, arguments(node)["weight"], dtype)
    for node in gm.graph.find_nodes(op="placeholder"):
        if is_cache(node):
            node.meta["val"] = new_value(gm, tuple(value(node).shape), dtype)
    uses = {(node, arguments(node)[name]) for node, name in narrow_arguments(gm)}
    for source in dict.fromkeys(arguments(node)[name] for node, name in narrow_arguments(gm)):
        if not narrow_at_the_maker(source, uses, dtype):
            insert_cast(source, [node for node, read in uses if read is source], dtype)
    return len(uses)


def is_cache(node: Node) -> bool:
    return value(node).is_floating_point()


def narrow_weight(gm: GraphModule, node: Node, dtype: torch.dtype) -> None:
    if value(node).dtype != dtype:
        node.meta["val"] = value(node).to(dtype)
        set_parameter(gm, str(node.target), node.meta["val"])


def narrow_arguments(gm: GraphModule) -> list[tuple[Node, str]]:
    """(node, argument name) for every argument that has to be narrow, in graph order."""
    names = dict(NARROW_ARGUMENTS)
    return [(node, names[op_name(node)]) for node in op_calls(gm, *names)]


def narrow_at_the_maker(source: Node, uses: set[Use], dtype: torch.dtype) -> bool:
    """Let the op that makes a value round it; not if anything else reads the value."""
    result = made(source)
    maker = result.args[0] if result.target is operator.getitem else result
    if not isinstance(maker, Node) or not takes_dtype(maker, result):
        return False
    if not set(final_users(result, *PASSING)) <= uses:
        return False
    set_arguments(maker, out_dtype=dtype)
    retype(result, dtype)
    if maker is not result:
        first, *rest = maker.meta["val"]
        maker.meta["val"] = (first.to(dtype), *rest)
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
    return result is maker or result.args[1] == 0


def retype(node: Node, dtype: torch.dtype) -> None:
    """Give a value, its views and its selections another dtype."""
    node.meta["val"] = value(node).to(dtype)
    for user in node.users:
        if user.target in PASSING:
            retype(user, dtype)


def insert_cast(source: Node, readers: Iterable[Node], dtype: torch.dtype) -> None:
    names = dict(NARROW_ARGUMENTS)
    with source.graph.inserting_after(source):
        cast = call_op(source.graph, "cast", like=source, x=source, out_dtype=dtype)
    for node in readers:
        set_arguments(node, **{names[op_name(node)]: cast})
