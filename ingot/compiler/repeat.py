"""From the graph of a module with few layers to that of the module with all of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from torch import nn
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from ingot.compiler.layers import Layers
from ingot.passes.graph import NUMBER

FIRST = 1  # the part that is the first layer


def repeat(short: Graph, module: nn.Module, layers: Layers) -> Graph:
    """The graph of a module, from that of the module with its layers shortened.

    Raises ValueError where the short graph does not show how layers follow on each other.
    """
    itself = Repeater(short, module, layers.path, range(len(layers.chosen))).graph
    if [node.name for node in itself.nodes] != [node.name for node in short.nodes]:
        raise ValueError("names of nodes are not counted up")
    return Repeater(short, module, layers.path, layers.stand_ins).graph


class Repeater:
    """Builds a graph of parts of a short one: what is before all layers, layers, what is after.

    A layer reads its own weights, what was there before all layers, and what the layer before it
    hands on: those of its nodes that others read, in their order. Where the first layer hands on
    more than a later one, the rest goes on to all others: its last are what each layer gives anew.
    """

    def __init__(
        self, short: Graph, module: nn.Module, path: str, stand_ins: Sequence[int]
    ) -> None:
        self.path, self.stand_ins = path, stand_ins
        self.parts = parts(short, path)
        self.part_of = {node: index for index, part in enumerate(self.parts) for node in part}
        self.handed_on = [[n for n in part if self.is_handed_on(n)] for part in self.parts]
        self.graph = Graph()
        self.weights = self.add_weights(short, module)
        self.before = self.add_part(0, 0, [])
        handed: list[Node] = []
        for index, place in enumerate(stand_ins):
            copies = self.add_part(place + 1, index, handed)
            own = [copies[node] for node in self.handed_on[place + 1]]
            handed = [*handed[: max(len(handed) - len(own), 0)], *own]
        self.add_part(len(self.parts) - 1, 0, handed)

    def is_handed_on(self, node: Node) -> bool:
        return any(self.part_of[user] != self.part_of[node] for user in node.users)

    def add_weights(self, short: Graph, module: nn.Module) -> dict[str, Node]:
        """Reads of weights come first, in the module's order."""
        read = {node.target: node for node in short.find_nodes(op="get_attr")}
        added = {}
        for name in (*dict(module.named_parameters()), *dict(module.named_buffers())):
            if node := read.get(self.name_in_short(name)):
                added[name] = self.graph.create_node("get_attr", name, name=name.replace(".", "_"))
                added[name].meta = dict(node.meta)
        return added

    def name_in_short(self, name: str) -> str:
        """The weight that stands for a weight of the module."""
        before, path, rest = name.partition(f"{self.path}.")
        index, _, rest = rest.partition(".")
        if before or not path:
            return name
        return (
            f"{path}{self.stand_ins[int(index)]}.{rest}" if int(index) < len(self.stand_ins) else ""
        )

    def add_part(self, part: int, index: int, handed: list[Node]) -> dict[Node, Node]:
        """Copies a part; one that is a layer becomes that with the index. Returns the copies."""
        copies: dict[Node, Node] = {}
        old, new = f"{self.path}.{part - 1}", f"{self.path}.{index}"

        def read(node: Node) -> Node:
            if node.op == "get_attr":
                return self.weights[moved(str(node.target), old, new)]
            giver = self.part_of[node]
            if giver in (part, 0):
                return copies[node] if giver == part else self.before[node]
            if giver not in (FIRST, part - 1):
                raise ValueError("a layer reads what another than that before it gives")
            return handed[self.handed_on[giver].index(node) - len(self.handed_on[giver])]

        for node in self.parts[part]:
            # Before the layers names are what they are; after that they count up.
            name = NUMBER.sub("", node.name) if part else node.name
            args, kwargs = map_arg(node.args, read), map_arg(node.kwargs, read)
            copy = self.graph.create_node(node.op, node.target, args, kwargs, name=name)
            copy.meta = moved_meta(node.meta, old, new)
            copies[node] = copy
        return copies


def parts(short: Graph, path: str) -> list[list[Node]]:
    """All nodes but reads of weights: before the layers, of each layer, after them."""

    def owner(node: Node) -> str:
        stack = node.meta.get("nn_module_stack", {})
        above = [name for name, _ in stack.values() if name.rpartition(".")[0] == path]
        return above[0] if above else ""

    nodes = [node for node in short.nodes if node.op != "get_attr"]
    found = [(name, list(run)) for name, run in groupby(nodes, owner)]
    inner = [name for name, _ in found[1:-1]]
    if inner != [f"{path}.{index}" for index in range(len(inner))]:
        raise ValueError("layers do not follow on each other")
    return [run for _, run in found]


def moved(name: str, old: str, new: str) -> str:
    """A dotted name with `old` at its start replaced."""
    return new + name.removeprefix(old) if f"{name}.".startswith(f"{old}.") else name


def moved_meta(meta: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """Metadata of a node, under the names of another layer."""
    if "nn_module_stack" not in meta:
        return dict(meta)
    stack = {}
    for key, (name, kind) in meta["nn_module_stack"].items():
        to = moved(name, old, new)
        stack[key.replace(name, to) if to != name else key] = (to, kind)
    return {**meta, "nn_module_stack": stack}
