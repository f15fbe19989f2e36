"""The graph of one layer of each kind after every pass, kept in an artifact for people.

Nothing that runs reads it. A stage holds only the lines that a pass has changed, so the file stays
small and can be read as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from ingot.artifact.codec import decode, encode

FILE = "passes/layers.json"
EXPORT = "export"  # the stage before the first pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The lines that take the place of `removed` lines, from line `first` on."""

    first: int
    removed: int
    added: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A pass that changed a layer, and its edits in order; `first` counts the lines before it."""

    name: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGraph:
    """A layer's part of the graph after every pass, in the lines that a dump has.

    Attributes:
        layer: path of its module, such as `model.layers.0`.
        alike: the indices of the layers of its kind; it is the first of them.
        stages: the first is the export, which adds lines to none.
    """

    layer: str
    alike: tuple[int, ...]
    stages: tuple[Stage, ...]

    def graphs(self) -> Iterator[tuple[str, list[str]]]:
        """The name of every stage, and the lines after it."""
        lines: list[str] = []
        for stage in self.stages:
            lines = edited(lines, stage.edits)
            yield stage.name, lines


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGraphs:
    """One layer of each kind, in the order of the model."""

    layers: tuple[LayerGraph, ...] = ()


def edited(lines: Sequence[str], edits: Sequence[Edit]) -> list[str]:
    """The lines after the edits."""
    found: list[str] = []
    place = 0
    for edit in edits:
        found += (*lines[place : edit.first], *edit.added)
        place = edit.first + edit.removed
    return [*found, *lines[place:]]


def edits_between(before: Sequence[str], after: Sequence[str]) -> tuple[Edit, ...]:
    """The edits that make one list of lines the other; none for equal ones."""
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    return tuple(
        Edit(first=first, removed=end - first, added=tuple(after[start:stop]))
        for tag, first, end, start, stop in matcher.get_opcodes()
        if tag != "equal"
    )


def encode_layers(graphs: LayerGraphs) -> bytes:
    """The bytes of `passes/layers.json`."""
    return encode(graphs)


def decode_layers(data: bytes, *, file: str = "layers.json") -> LayerGraphs:
    """Decodes the graphs of layers.

    Raises ArtifactError, naming `file`, if they say nothing of that kind.
    """
    return decode(data, LayerGraphs, file)
