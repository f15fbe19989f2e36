"""The interface of a program, as data: what a step is given, what outlives it, what it returns.

Graph inputs, plan buffers, host arrays, the native struct and the page in docs/ are made from it.
`ingot.artifact.programs` declares the inputs and outputs of every program.

Shapes are over the symbols in `SYMBOLS`; a dimension is a number or a symbol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ingot.artifact.formats import DType, Format

Dim = int | str
StateKind = Literal["paged", "slotted"]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that differs from step to step: the host's name for it, and what it counts."""

    name: str
    meaning: str


SYMBOLS: Mapping[str, Symbol] = {
    "N": Symbol("num_tokens", "tokens of the step"),
    "S": Symbol("num_seqs", "sequences of the step"),
    "R": Symbol("num_rows", "tokens whose logits are wanted"),
    "P": Symbol("num_columns", "pages of the longest sequence"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """An array that a step reads or fills: row-major and dense.

    `plain` is the plain module's name for an input that it has as well, with a batch of one.
    """

    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    meaning: str = ""
    plain: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Memory that outlives a step.

    Attributes:
        kind: "paged" has a record for every token, in pages; "slotted" has one for every sequence,
            in a slot. Where a sequence begins, its record counts as zeros, whatever lies there.
        format: how the numbers of a record are stored.
        record: shape of a record, (heads, size); a latent row has one head.
        window: how many tokens attention looks back at; 0 for all of them.
    """

    name: str
    kind: StateKind = "paged"
    format: Format
    record: tuple[int, int]
    window: int = 0

    def shape(self, page_size: int) -> tuple[Dim, ...]:
        """Shape of its memory. The runtime chooses how many pages or slots; they are written 0."""
        heads, size = self.record
        return (0, heads, page_size, size) if self.kind == "paged" else (0, heads, size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The interface of a program: its inputs, states and outputs."""

    inputs: tuple[Array, ...] = ()
    states: tuple[State, ...] = ()
    outputs: tuple[Array, ...] = ()
