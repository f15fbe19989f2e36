"""Preparation of another library's graph for the passes."""

from __future__ import annotations

import operator
from contextlib import suppress

import torch
from torch import nn
from torch.fx import GraphModule, Node

from ingot.errors import PassError, UnsupportedModelError, listed
from ingot.models.blocks.constants import named_constants
from ingot.passes.graph import aten, is_call, op_name, origin
from ingot.passes.invariants import is_row_view
from ingot.passes.pipeline import PIPELINE

COMMUTATIVE = (aten.mul.Tensor, aten.add.Tensor)
ARITHMETIC = (*COMMUTATIVE, aten.div.Tensor, aten.sub.Tensor)
ADDED = (aten.lift_fresh_copy.default, aten.detach_.default, aten.to.dtype, aten.clone.default)


def settle(gm: GraphModule, module: nn.Module) -> GraphModule:
    """Writes constants of one number as that number, and every parameter under its first name.

    `module` is the one that the graph was exported from. Raises UnsupportedModelError for constants
    that are no buffers of it, and for numbers that are read from tensors.
    """
    refuse_values(gm)
    first, constants = first_names(module), named_constants(module)
    for node in gm.graph.find_nodes(op="get_attr"):
        tensor = constants.get(str(node.target), attribute(gm, str(node.target)))
        if tensor.numel() == 1 and not tensor.is_meta:
            write_number(node, tensor.item())
    gm.graph.eliminate_dead_code()
    for node in gm.graph.find_nodes(op="get_attr"):
        node.target = first.get(str(node.target), node.target)
        if node.target not in first and node.target not in constants:
            raise UnsupportedModelError(
                f"no op stands for the constant {node.target}, which {readers(node)} reads",
                hint="a module may read its parameters, and buffers of floats",
            )
    return GraphModule(module, gm.graph)


def refuse_values(gm: GraphModule) -> None:
    """Raises UnsupportedModelError where a size follows from what a tensor holds."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols  # slow to import

    for node in gm.graph.nodes:
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor | torch.SymInt) and free_unbacked_symbols(val):
            where = origin(node) or "the model itself"
            raise UnsupportedModelError(
                f"no op stands for {str(node.target).removesuffix('.default')}, whose result has "
                f"a size that values decide, at {where}",
                hint="in a plan all sizes follow from the number of tokens",
            )


def readers(node: Node) -> str:
    """Describes the readers of a node."""
    return " and ".join(dict.fromkeys(origin(user) or "the model itself" for user in node.users))


def first_names(module: nn.Module) -> dict[str, str]:
    """The first name of every parameter, by each that it has."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    every = module.named_parameters(remove_duplicate=False)
    return {name: names[id(parameter)] for name, parameter in every}


def attribute(gm: GraphModule, name: str) -> torch.Tensor:
    found: torch.Tensor = operator.attrgetter(name)(gm)
    return found


def write_number(node: Node, number: float) -> None:
    """Lets arithmetic read a number instead of a tensor that holds it."""
    for user in list(node.users):
        if is_call(user, *ADDED):
            write_number(user, number)
        elif is_call(user, *ARITHMETIC) and user.args[1] is node and user.args[0] is not node:
            user.args = (user.args[0], number, *user.args[2:])
        elif is_call(user, *COMMUTATIVE) and user.args[0] is node and user.args[1] is not node:
            user.args = (user.args[1], number)


PASS_NAMES = [each.name for each in PIPELINE]


def strangers(gm: GraphModule) -> dict[str, str]:
    """The calls that no op stands for, by name, each with the first module that has one."""
    found: dict[str, str] = {}
    for node in gm.graph.nodes:
        if node.op != "call_function" or op_name(node) or not node.users:
            continue
        if isinstance(node.meta.get("val"), torch.Tensor) and not is_row_view(node):
            found.setdefault(str(node.target).removesuffix(".default"), origin(node))
    return found


def refusal(gm: GraphModule, architecture: str, error: PassError) -> UnsupportedModelError:
    """The error of a graph that the passes could not finish: what stands in the way, and where."""
    for each in PIPELINE[: PASS_NAMES.index("merge_linears")]:
        with suppress(Exception):  # what a pass can still name stands in nobody's way
            each.function(gm)
    gm.graph.eliminate_dead_code()
    found = strangers(gm)
    calls = [f"{name} at {where or 'the model itself'}" for name, where in found.items()]
    return UnsupportedModelError(
        f"{architecture} computes what no op stands for: {listed(calls, 3)}"
        if calls
        else f"{architecture} cannot be compiled: {error.found}",
        hint="docs/transformers_classes.md tells which classes compile. --dump DIR shows the graph "
        "after every pass; a family of the model's own may be written: docs/add_a_model.md",
    )
