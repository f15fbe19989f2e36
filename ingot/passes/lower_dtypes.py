"""lower_dtypes: decide what is stored in 16 bits; the residual stream never is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.traits import TRAITS, Role
from ingot.ops import OPS
from ingot.passes.graph import (
    arguments,
    aten,
    call_op,
    final_users,
    op_calls,
    op_name,
    op_nodes,
    routes,
    set_arguments,
    signature,
    states_of,
    value,
)
from ingot.passes.inputs import new_value
from ingot.passes.weights import set_parameter, sources

# What hands a value on in the dtype that it came in.
PASSING = (
    aten.reshape.default,
    aten.slice.Tensor,
    *(
        OPS[name].overload
        for name, traits in TRAITS.items()
        if Role.CHOSEN in traits.roles.values() and "out_dtype" not in signature(name).parameters
    ),
)

Use = tuple[Node, Node]  # a reader and what it reads


def lower_dtypes(
    gm: GraphModule, *, narrow: torch.dtype = torch.bfloat16, integers: Set[str] = frozenset()
) -> int:
    """Store weight matrices, what they are multiplied with, queries and caches in 16 bits.

    They are `narrow`: bfloat16 or float16. The op that makes such a value rounds it once, on the
    way out; where something else needs the value, too, a cast does. Records, and what is taken up
    into them, stay float32: their errors add up over a sequence. Embedded tokens, the residual
    stream, results of linears, norm weights, biases, tables and logits stay float32. So do
    `integers`, the model's parameters that are to be stored in integers, and what is multiplied
    with them: a target rounds those. Experts are picked in float32: so stays the product that gives
    them logits, which are rounded if `route` says so.

    Before:
        h = rms_norm(x, w);  y = linear(h, W)                         W float32
    After:
        h = rms_norm(x, w, out_dtype=bfloat16);  y = linear(h, W)     W bfloat16, y float32
    """
    for node in weights_to_narrow(gm, integers):
        if value(node).dtype != narrow:
            node.meta["val"] = value(node).to(narrow)
            set_parameter(gm, str(node.target), node.meta["val"])
    for node in gm.graph.find_nodes(op="placeholder"):
        state = states_of(gm).get(node.name)
        if state and state.kind == "paged":
            node.meta["val"] = new_value(gm, tuple(value(node).shape), narrow)
    uses = dict.fromkeys(narrow_uses(gm, narrow))
    for node in op_calls(gm, "route"):
        if arguments(node)["narrow"]:
            insert_cast(arguments(node)["logits"], [node], narrow)
    for source in dict.fromkeys(read for _, read in uses):
        if not narrow_at_the_maker(source, uses.keys(), narrow):
            insert_cast(source, [node for node, read in uses if read is source], narrow)
    return len(uses)


def weights_to_narrow(gm: GraphModule, integers: Set[str]) -> list[Node]:
    """The matrices and tables that stay numbers, but for those that experts are picked by."""
    found: dict[Node, None] = {}
    for node, traits in op_nodes(gm):
        if routes(node):
            continue
        for name in traits.integers:
            weight = arguments(node)[name]
            if not set(sources(gm, str(weight.target))) & integers:
                found[weight] = None
    return list(found)


def narrow_uses(gm: GraphModule, narrow: torch.dtype) -> Iterator[Use]:
    """Finds what is multiplied with a narrow matrix, or in attention; in graph order."""
    for node, traits in op_nodes(gm):
        given = arguments(node)
        is_narrow = traits.matrix and value(given[traits.matrix]).dtype == narrow
        if is_narrow or traits.attends:
            yield node, given[traits.multiplied]
        met = set(traits.arguments(Role.SEGMENT)) - set(traits.added)
        for rows in (given[name] for name in given if name in met):
            if value(rows).is_floating_point():
                yield node, rows


def narrow_at_the_maker(source: Node, uses: Set[Use], narrow: torch.dtype) -> bool:
    """Let the op that makes a value round it; not if anything else reads the value."""
    maker = made(source)
    name = op_name(maker)
    if not name or "out_dtype" not in signature(name).parameters:
        return False
    if TRAITS[name].matrix and not TRAITS[name].narrows:
        return False
    if not set(final_users(maker, *PASSING)) <= uses:
        return False
    set_arguments(maker, out_dtype=narrow)
    retype(maker, narrow)
    return True


def made(node: Node) -> Node:
    """The op that a value is a view or a selection of."""
    while node.target in PASSING:
        node = node.args[0]  # type: ignore[assignment]
    return node


def retype(node: Node, narrow: torch.dtype) -> None:
    """Give a value, its views and its selections the narrow dtype."""
    node.meta["val"] = value(node).to(narrow)
    for user in node.users:
        if user.target in PASSING:
            retype(user, narrow)


def insert_cast(source: Node, readers: Iterable[Node], narrow: torch.dtype) -> None:
    with source.graph.inserting_after(source):
        cast = call_op(source.graph, "cast", like=source, x=source, out_dtype=narrow)
    for node in readers:
        node.replace_input_with(source, cast)
