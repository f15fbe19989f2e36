"""Preparation of another library's graph for the passes."""

from __future__ import annotations

import operator
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from ingot.errors import PassError, UnsupportedModelError, listed
from ingot.models.blocks.constants import named_constants
from ingot.passes.graph import (
    aten,
    call_op,
    calls,
    is_call,
    op_name,
    origin,
    replace,
    strip,
    value,
)
from ingot.passes.invariants import is_row_view
from ingot.passes.pipeline import PIPELINE
from ingot.passes.spelled_attention import VIEWS

COMMUTATIVE = (aten.mul.Tensor, aten.add.Tensor)
ARITHMETIC = (*COMMUTATIVE, aten.div.Tensor, aten.sub.Tensor)
ADDED = (aten.lift_fresh_copy.default, aten.detach_.default, aten.to.dtype, aten.clone.default)


# What makes numbers of its own, and views none.
MADE = (*ARITHMETIC, aten.add_.Tensor, aten.embedding.default, aten.linear.default)
# Rows of a text that a class may classify it by, and what may be computed of one.
ENDS = {0: "first", -1: "last"}
OF_ROWS = (
    *(aten.linear.default, aten.layer_norm.default, aten.tanh.default, aten.gelu.default),
    *(aten.relu.default, aten.silu.default, aten.dropout.default, *ARITHMETIC, *ADDED),
)


def settle(gm: GraphModule, module: nn.Module) -> GraphModule:
    """Writes constants of one number as that number, and every parameter under its first name.

    `module` is the one that the graph was exported from. Raises UnsupportedModelError for constants
    that are no buffers of it, and for numbers that are read from tensors.
    """
    refuse_values(gm)
    drop_zeros(gm)
    if value(gm.graph.output_node().all_input_nodes[0]).dim() == 2:  # scores of a text
        pool_ends(gm)
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


def drop_zeros(gm: GraphModule) -> None:
    """Removes additions of zero: it stands for a mask that hides nothing, and for embeddings that
    are part of others. Sums that are written over what nothing else reads are sums."""
    for node in calls(gm, aten.add_.Tensor):
        written = node.args[0]
        if is_call(written, *MADE) and list(written.users) == [node]:  # type: ignore[union-attr]
            node.target = aten.add.Tensor
    for node in calls(gm, aten.add.Tensor):
        for x, zero in (node.args[:2], node.args[1::-1]):
            if is_zero(zero) and isinstance(x, Node) and value(x).shape == value(node).shape:
                replace(node, x)
                break
    gm.graph.eliminate_dead_code()


def is_zero(added: Any) -> bool:
    """Returns whether that is a tensor of zeros which the graph makes."""
    source = strip(added, *VIEWS, *ADDED) if isinstance(added, Node) else None
    return source is not None and is_call(source, aten.zeros.default)


def pool_ends(gm: GraphModule) -> None:
    """Names the first or the last row of a text, where a class takes it to classify the text.

    What is made of it has a row for the text then, [1, 1, C], as what a model of ours makes.

    Raises UnsupportedModelError where anything but a row by itself is computed of it.
    """
    tokens = value(next(iter(gm.graph.find_nodes(op="placeholder")))).shape[1]
    for node in calls(gm, aten.select.int):
        x, dim, index = node.args
        taken = value(x).dim() == 3 and dim == 1 and value(x).shape[1] == tokens
        how = ENDS.get(index) if isinstance(index, int) else None
        if not taken or how is None:
            continue
        with gm.graph.inserting_before(node):
            val = value(x)[:, :1]
            row = call_op(gm.graph, "pool", like=node, val=val, x=x, spans=None, how=how)
        replace(node, row)
        keep_dimension(gm, row)
    if value(gm.graph.output_node().all_input_nodes[0]).dim() == 2:
        raise UnsupportedModelError(
            "no op stands for the way in which the rows of a text become one",
            hint="supported: the first or the last row; a family builds others, such as a mean",
        )


def keep_dimension(gm: GraphModule, row: Node) -> None:
    """Gives what is computed of a row a dimension more."""
    after = {row}
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or not after.intersection(node.all_input_nodes):
            continue
        if is_call(node, aten._assert_tensor_metadata.default):
            gm.graph.erase_node(node)
            continue
        if is_call(node, aten.slice.Tensor) and value(node).shape[0] == 1:
            source = node.args[0]
            if value(node).shape[-1] == value(source).shape[-1]:  # all of it
                replace(node, source)
                continue
        if not is_call(node, *OF_ROWS):
            raise UnsupportedModelError(
                f"no op stands for {str(node.target).removesuffix('.default')} of the one row that "
                f"a text is classified by, at {origin(node) or 'the model itself'}",
                hint="write a family of the model's own: docs/add_a_model.md",
            )
        args, kwargs = map_arg((node.args, node.kwargs), value)
        node.meta["val"] = node.target(*args, **kwargs)
        after.add(node)


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
