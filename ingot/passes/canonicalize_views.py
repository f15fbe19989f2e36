"""canonicalize_views: one spelling for every way to look at a tensor.

The canonical views are reshape (the symbolic dimension written -1), transpose, unsqueeze, expand
and slice, with dimensions counted from the front, and none that changes nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

from torch.fx import GraphModule, Node

from ingot.passes.graph import argument, aten, call, calls, is_call, rank, replace, shape, value

RESHAPES = (
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.squeeze.dim,
    aten.squeeze.dims,
)
SPLITS = (
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.split.sizes,
    aten.chunk.default,
)


def canonicalize_views(gm: GraphModule) -> int:
    """Write every view as reshape, transpose, unsqueeze, expand or slice.

    Before:
        a = view(x, [1, sym_size(x, 1), 4, 64]);  b, c = chunk(y, 2, -1)
        d = permute(z, [0, 2, 1, 3]);  e = select(view(y, [1, 7, 2, 64]), 2, 1)
    After:
        a = reshape(x, [1, -1, 4, 64]);  b = slice(y, 2, 0, 64);  c = slice(y, 2, 64, 128)
        d = transpose(z, 1, 2);  e = slice(y, 2, 64, 128)
    """
    count = 0
    for targets, rule in RULES:
        for node in calls(gm, *targets):
            count += rule(node)
    return count


def split_to_slices(node: Node) -> int:
    """Split, chunk: one slice for every part that is used."""
    dim = argument(node, 2, "dim", 0) % rank(node.args[0])  # type: ignore[arg-type]
    start = 0
    for index, part in enumerate(node.meta["val"]):
        size = part.shape[dim]
        for user in list(node.users):
            if user.target is operator.getitem and user.args[1] == index:
                with node.graph.inserting_before(user):
                    args = (node.args[0], dim, start, start + size)
                    replace(user, call(node.graph, aten.slice.Tensor, *args, like=user, val=part))
        start += size
    node.graph.erase_node(node)
    return 1


def select_to_slice(node: Node) -> int:
    """Select among the parts that rows were split in: a slice of the rows."""
    source: Any = node.args[0]
    dim, index = argument(node, 1, "dim", 0), argument(node, 2, "index")
    if not is_call(source, *RESHAPES) or dim % rank(source) != rank(source) - 2:
        return 0
    rows: Any = source.args[0]
    *others, parts, width = shape(source)
    if not isinstance(parts, int) or not isinstance(width, int) or not isinstance(index, int):
        return 0
    if shape(rows) != (*others, parts * width):
        return 0
    start = index % parts * width
    with node.graph.inserting_before(node):
        args = (rows, rank(rows) - 1, start, start + width)
        replace(node, call(node.graph, aten.slice.Tensor, *args, like=node, val=value(node)))
    return 1


def one_reshape(node: Node) -> int:
    """View, reshape, flatten: one reshape of the tensor below, or nothing."""
    source: Any = node.args[0]
    below = source.args[0] if source.target is aten.reshape.default else source
    for same in (source, below):
        if shape(same) == shape(node):
            replace(node, same)
            return 1
    sizes = [d if isinstance(d, int) else -1 for d in value(node).shape]
    if sizes.count(-1) > 1:
        return 0
    source = below
    if node.target is aten.reshape.default and node.args == (source, sizes):
        return 0
    with node.graph.inserting_before(node):
        args = (source, sizes)
        replace(node, call(node.graph, aten.reshape.default, *args, like=node, val=value(node)))
    return 1


def swap_to_transpose(node: Node) -> int:
    """Permute that swaps two dimensions, transpose from the back: transpose from the front."""
    source: Any = node.args[0]
    size = rank(source)
    if node.target is aten.permute.default:
        dims: Any = node.args[1]
        order = [d % size for d in dims]
        moved = [d for d in range(size) if order[d] != d]
    else:
        first, second = cast(tuple[int, int], node.args[1:3])
        moved = sorted({first % size, second % size})
    if len(moved) < 2:
        replace(node, source)
        return 1
    if len(moved) != 2 or (node.target is aten.transpose.int and node.args[1:] == tuple(moved)):
        return 0
    with node.graph.inserting_before(node):
        args = (source, *moved)
        replace(node, call(node.graph, aten.transpose.int, *args, like=node, val=value(node)))
    return 1


def full_slice(node: Node) -> int:
    """Slice: dimension from the front, explicit bounds, nothing if it takes all."""
    source = node.args[0]
    assert isinstance(source, Node)
    step = argument(node, 4, "step", 1)
    if shape(source) == shape(node) and step == 1:
        replace(node, source)
        return 1
    dim = argument(node, 1, "dim", 0) % rank(source)
    size = value(source).shape[dim]
    start, end = argument(node, 2, "start") or 0, argument(node, 3, "end")
    if not all(isinstance(x, int) for x in (size, start, 0 if end is None else end)):
        return 0
    start = max(start + size, 0) if start < 0 else start
    end = size if end is None else min(end + size if end < 0 else end, size)
    args = (source, dim, start, end) if step == 1 else (source, dim, start, end, step)
    changed = node.args != args
    node.args, node.kwargs = args, {}
    return int(changed)


def from_the_front(node: Node) -> int:
    """Unsqueeze, cat, stack: dimension from the front."""
    dim = argument(node, 1, "dim", 0)
    if dim >= 0 and len(node.args) == 2:
        return 0
    node.args, node.kwargs = (node.args[0], dim % rank(node)), {}
    return 1


def cat_of_parts(node: Node) -> int:
    """Cat: without parts that are empty, or that of one."""
    dim = argument(node, 1, "dim", 0) % rank(node)
    parts: Any = node.args[0]
    if any(value(part).dim() != rank(node) for part in parts):
        return 0
    kept = [part for part in parts if shape(part)[dim] != 0]
    if len(kept) == 1:
        replace(node, kept[0])
        return 1
    if len(kept) == len(parts):
        return 0
    node.args, node.kwargs = (kept, dim), {}
    return 1


def no_expand(node: Node) -> int:
    """Expand to the same shape: nothing."""
    source = node.args[0]
    assert isinstance(source, Node)
    if shape(source) != shape(node):
        return 0
    replace(node, source)
    return 1


RULES: tuple[tuple[tuple[object, ...], Callable[[Node], int]], ...] = (
    (SPLITS, split_to_slices),
    ((aten.cat.default,), cat_of_parts),
    ((aten.expand.default,), no_expand),
    ((aten.select.int,), select_to_slice),
    (RESHAPES, one_reshape),
    ((aten.permute.default, aten.transpose.int), swap_to_transpose),
    ((aten.slice.Tensor,), full_slice),
    ((aten.unsqueeze.default, aten.cat.default, aten.stack.default), from_the_front),
)
