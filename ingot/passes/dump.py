"""Readable text: graphs, counts of ops, and the folder that a dump writes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.spec import SYMBOLS, StateKind
from ingot.passes.graph import origin, program_of, signature, states_of, value

SYMBOL = re.compile(r"[a-z]+\d+")
STATE_SIZES: Mapping[StateKind, tuple[str, ...]] = {
    "paged": ("pages", "", "page_size"),
    "slotted": ("num_slots",),
}


def op_counts(gm: GraphModule) -> Counter[str]:
    """Counts the calls of each function."""
    return Counter(target_name(n) for n in gm.graph.nodes if n.op == "call_function")


def count_delta(before: Counter[str], after: Counter[str]) -> str:
    """`nodes 20 -> 12; aten.mul 4 -> 0; rms_norm 0 -> 2`, or "(unchanged)"."""
    if before == after:
        return "(unchanged)"
    changed = sorted(name for name in before | after if before[name] != after[name])
    ops = [f"{name} {before[name]} -> {after[name]}" for name in changed]
    return "; ".join((f"nodes {before.total()} -> {after.total()}", *ops))


def graph_text(gm: GraphModule) -> str:
    """The graph, one line a node: shape and dtype, name and call, module path."""
    sizes = size_names(gm)
    return "".join(f"{line_text(node, sizes)}\n" for node in gm.graph.nodes)


def line_text(node: Node, sizes: Mapping[str, str]) -> str:
    """`float32[1, N, 64]           add_1 = aten.add(x, y)  # model.layers.0`."""
    path = origin(node)
    return f"{type_text(node, sizes):<27} {node_text(node)}{'  # ' if path else ''}{path}"


def node_text(node: Node) -> str:
    if node.op == "placeholder":
        return f"{node.name} = input"
    if node.op == "get_attr":
        return f"{node.name} = weight {node.target}"
    if node.op == "output":
        return f"output({', '.join(n.name for n in node.all_input_nodes)})"
    return f"{node.name} = {target_name(node)}({arguments_text(node)})"


def arguments_text(node: Node) -> str:
    """Arguments as written; of an ingot op only those that are not the default."""
    if getattr(node.target, "namespace", "") != "ingot":
        given = [argument_text(a) for a in node.args]
        return ", ".join(given + [f"{k}={argument_text(v)}" for k, v in node.kwargs.items()])
    parameters = signature(target_name(node)).parameters
    given = []
    for (name, parameter), arg in zip(parameters.items(), node.args, strict=False):
        if isinstance(arg, Node):
            given.append(arg.name)
        elif arg != parameter.default:
            given.append(f"{name}={argument_text(arg)}")
    return ", ".join(given)


def argument_text(arg: Any) -> str:
    if isinstance(arg, Node):
        return arg.name
    if isinstance(arg, (list, tuple)):
        return f"[{', '.join(argument_text(a) for a in arg)}]"
    return str(arg).removeprefix("torch.")


def target_name(node: Node) -> str:
    """`rms_norm` for ops of ingot, `aten.mul` for PyTorch's."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return str(getattr(target, "__name__", target))
    namespace, _, name = target._schema.name.partition("::")
    return name if namespace == "ingot" else f"{namespace}.{name}"


def size_names(gm: GraphModule) -> dict[str, str]:
    """Letters for the symbols of the graph's inputs."""
    found: dict[str, str] = {}
    for node in gm.graph.find_nodes(op="placeholder"):
        for letter, size in zip(dims(gm, node), value(node).shape, strict=False):
            if letter:
                found.setdefault(str(size), letter)
    return found


def dims(gm: GraphModule, node: Node) -> tuple[str, ...]:
    """Names the sizes of an input; empty for those that are numbers."""
    if node.name in states_of(gm):
        return STATE_SIZES[states_of(gm)[node.name].kind]
    for array in program_of(gm).inputs:
        if node.name in (array.name, array.plain):
            batch = ("",) if array.plain else ()
            return (*batch, *(str(dim) if dim in SYMBOLS else "" for dim in array.shape))
    return ()


def type_text(node: Node, sizes: Mapping[str, str]) -> str:
    """`float32[1, N, 64]`."""
    val = node.meta.get("val")
    if isinstance(val, (tuple, list)):
        return ", ".join(tensor_text(v, sizes) for v in val)
    return tensor_text(val, sizes) if isinstance(val, torch.Tensor) else ""


def tensor_text(val: torch.Tensor, sizes: Mapping[str, str]) -> str:
    dims = [SYMBOL.sub(lambda match: sizes.get(match[0], match[0]), str(d)) for d in val.shape]
    return f"{str(val.dtype).removeprefix('torch.')}[{', '.join(dims)}]"


class Dump:
    """Writes `00_export.txt`, `NN_<pass>.txt` for each pass that changed the graph, a summary."""

    def __init__(self, folder: Path | None, gm: GraphModule) -> None:
        self.folder = folder
        self.lines = [f"{'pass':<26}{'ms':>8}{'matches':>9}  calls"]
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.counts, self.text = op_counts(gm), graph_text(gm)
            (folder / "00_export.txt").write_text(self.text)

    def after(self, index: int, name: str, gm: GraphModule, seconds: float, matched: int) -> None:
        """Note what a pass did, and how long it took."""
        if self.folder is None:
            return
        counts, text = op_counts(gm), graph_text(gm)
        delta = count_delta(self.counts, counts)
        if text != self.text:
            (self.folder / f"{index:02}_{name}.txt").write_text(text)
            delta = delta.replace("(unchanged)", "(the same calls with other arguments)")
        self.counts, self.text = counts, text
        self.lines.append(f"{name:<26}{seconds * 1e3:>8.1f}{matched:>9}  {delta}")
        (self.folder / "summary.txt").write_text("\n".join(self.lines) + "\n")
