"""Notes what every pass makes of some layers, for those who look at an artifact."""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import GraphModule, Node

from ingot.artifact.layer_graphs import EXPORT, LayerGraph, LayerGraphs, Stage, edits_between
from ingot.passes.dump import line_text, size_names
from ingot.passes.graph import origin


class LayerLog:
    """The graph of some layers after the export and after every pass that changed it.

    Args:
        layers: paths of modules, each with the indices of the layers that are like it.
    """

    def __init__(self, layers: Mapping[str, tuple[int, ...]]) -> None:
        self._layers = layers
        self._lines: dict[str, list[str]] = {layer: [] for layer in layers}
        self._stages: dict[str, list[Stage]] = {layer: [] for layer in layers}

    def begin(self, gm: GraphModule) -> None:
        """Note the graph as it was exported."""
        self.after(EXPORT, gm)

    def after(self, name: str, gm: GraphModule) -> None:
        """Note what a pass of that name has changed."""
        for layer, lines in self._lines_of(gm).items():
            edits = edits_between(self._lines[layer], lines)
            if edits:
                self._stages[layer].append(Stage(name=name, edits=edits))
            self._lines[layer] = lines

    @property
    def graphs(self) -> LayerGraphs:
        """All that was noted."""
        return LayerGraphs(
            layers=tuple(
                LayerGraph(layer=layer, alike=alike, stages=tuple(self._stages[layer]))
                for layer, alike in self._layers.items()
            )
        )

    def _lines_of(self, gm: GraphModule) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {layer: [] for layer in self._layers}
        if not found:
            return found
        sizes = size_names(gm)
        for node in gm.graph.nodes:
            layer = self._layer_of(node)
            if layer:
                found[layer].append(line_text(node, sizes))
        return found

    def _layer_of(self, node: Node) -> str:
        path = f"{origin(node)}."
        return next((layer for layer in self._layers if path.startswith(f"{layer}.")), "")
