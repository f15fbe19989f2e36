"""Reading and editing graphs: what every pass needs and none should write twice.

A node's `meta` holds `val`, a fake tensor with its shape and dtype, and `nn_module_stack`, the
module that it comes from. Edits keep both.

A graph has in its `meta` the `program` that it becomes, the `states` among its inputs, and
`weight_sources`: for each parameter that a pass made, those of the model that are stacked in it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ingot.artifact.programs import STEP, Program
from ingot.artifact.spec import State
from ingot.artifact.traits import TRAITS, Traits
from ingot.ops import OPS

Target = Callable[..., Any]

aten = torch.ops.aten
_CASTS = (aten._to_copy.default, aten.to.dtype, aten.view.default, aten.reshape.default)

NUMBER = re.compile(r"_\d+$")


def program_of(gm: GraphModule) -> Program:
    """The program that a graph becomes: the one that advances text, unless it says another."""
    program: Program = gm.meta.get("program", STEP)
    return program


def states_of(gm: GraphModule) -> dict[str, State]:
    """The states that passes have given a graph, by the names of its inputs."""
    states: dict[str, State] = gm.meta.setdefault("states", {})
    return states


def origin(node: Node) -> str:
    """The module path that a node comes from, as in `model.layers.3.self_attn`; "" for the root."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path: str = next(reversed(stack.values()))[0]
    return path.removeprefix("L['self'].")


def calls(gm: GraphModule, *targets: Any) -> list[Node]:
    """The nodes that call one of the targets, in graph order."""
    return [n for n in gm.graph.nodes if n.op == "call_function" and n.target in targets]


def op_calls(gm: GraphModule, *names: str) -> list[Node]:
    """The nodes that call one of these ops of `ingot.ops`, in graph order."""
    return calls(gm, *(OPS[name].overload for name in names))


def is_op(value: Any, name: str) -> bool:
    """Tells whether a value is a node that calls this op of `ingot.ops`."""
    return isinstance(value, Node) and value.target is OPS[name].overload


def is_call(value: Any, *targets: Any) -> bool:
    """Tells whether a value is a node that calls one of the targets."""
    return isinstance(value, Node) and value.op == "call_function" and value.target in targets


def op_name(node: Node) -> str:
    """The name of the `ingot.ops` op that a node calls, or ""."""
    if getattr(node.target, "namespace", "") != "ingot":
        return ""
    return str(node.target._schema.name).partition("::")[2]  # type: ignore[union-attr]


def op_nodes(gm: GraphModule) -> Iterator[tuple[Node, Traits]]:
    """The calls of primitives, with their traits, in graph order."""
    for node in gm.graph.nodes:
        if name := op_name(node):
            yield node, TRAITS[name]


def signature(name: str) -> inspect.Signature:
    """The signature of an op of `ingot.ops`."""
    return OPS[name].signature


def arguments(node: Node) -> dict[str, Any]:
    """The arguments of an `ingot.ops` call by name, defaults included."""
    return vars(OPS[op_name(node)].bind(*node.args, **node.kwargs))


def set_arguments(node: Node, **changed: Any) -> None:
    """Change some arguments of an `ingot.ops` call; all are then given by position."""
    node.args = tuple((arguments(node) | changed).values())
    node.kwargs = {}


def argument(node: Node, index: int, name: str, default: Any = None) -> Any:
    """An argument of an ATen call, however it was passed."""
    if index < len(node.args):
        return node.args[index]
    return node.kwargs.get(name, default)


def routes(node: Node) -> bool:
    """Tells whether experts are picked by the results of a linear."""
    return any(is_op(user, "route") for user, _ in final_users(node, *_CASTS))


def steers(node: Node) -> bool:
    """Tells whether the results of a linear say at which rates states decay and are corrected."""
    through = (
        *_CASTS,
        aten.slice.Tensor,
        *(OPS[n].overload for n in ("activation", "clamp", "scale")),
    )
    uses = final_users(node, *through)
    return any(
        is_op(user, "recurrence") and x in (arguments(user)["decay"], arguments(user)["beta"])
        for user, x in uses
    )


def value(node: Any) -> torch.Tensor:
    """The fake tensor that stands for a node's result."""
    tensor: torch.Tensor = node.meta["val"]
    return tensor


def rank(node: Node) -> int:
    return value(node).dim()


def shape(node: Node) -> tuple[int | str, ...]:
    """The shape with symbols as text: comparing it adds no guard."""
    return tuple(d if isinstance(d, int) else str(d) for d in value(node).shape)


def call(graph: Graph, target: Target, *args: Any, like: Node, val: Any = None) -> Node:
    """Insert a call at the graph's insertion point.

    `like` is the node whose module path it takes over; `val` its fake result, computed where it is
    not given.
    """
    node = graph.create_node("call_function", target, args, name=short_name(target))
    if val is None:
        val = target(*torch.fx.node.map_arg(args, lambda n: n.meta["val"]))
    node.meta["val"] = val
    if "nn_module_stack" in like.meta:
        node.meta["nn_module_stack"] = like.meta["nn_module_stack"]
    return node


def short_name(target: Any) -> str:
    """`linear` for ingot.linear.default, `slice` for aten.slice.Tensor."""
    schema = getattr(target, "_schema", None)
    return schema.name.partition("::")[2] if schema else str(target.__name__)


def call_op(graph: Graph, name: str, *, like: Node, val: Any = None, **given: Any) -> Node:
    """Insert a call of an op of `ingot.ops` with every argument by position; see `call`."""
    op = OPS[name]
    return call(graph, op.overload, *vars(op.bind(**given)).values(), like=like, val=val)


def replace(node: Node, new: Node) -> None:
    """Let every user of a node read `new` instead, and erase the node.

    A call that was replaced by one of the same kind hands on its name, so that texts of the graph
    before and after a pass differ by little.
    """
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)
    if NUMBER.sub("", node.name) == NUMBER.sub("", new.name):
        new.name = node.name


def strip(node: Node, *targets: Any) -> Node:
    """The node below any chain of calls to these targets, followed through first arguments."""
    while is_call(node, *targets) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def final_users(node: Node, *through: Any) -> Iterator[tuple[Node, Node]]:
    """(user, argument) for every use of a node's value, looking through calls to these targets."""
    for user in node.users:
        if is_call(user, *through):
            yield from final_users(user, *through)
        else:
            yield user, node
