"""Sources of parameters in a checkpoint: rows of tensors, by the rules of a family.

A rule gives pieces: rows of one tensor each. A parameter that stacks experts has the pieces of one
expert after those of the one before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingot.models.blueprint import Shape
from ingot.models.checkpoints.formats.quantized import EncodedTensor, OfExpert
from ingot.models.checkpoints.mapped_file import TensorInfo
from ingot.models.weight_rules import (
    EXPERT,
    Decays,
    Join,
    Products,
    Rows,
    Rule,
    Stack,
    Sums,
    Totals,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Source of a parameter: rows of a tensor, in runs of neighbours.

    Row i of the parameter is row `first_row + i // run * stride + i % run` of the tensor.

    Attributes:
        info: the tensor; whole: the shape that it must have.
        shape: of the parameter.
        transposed: the rows of the tensor are its columns.
        turned: the parameter has the columns of each run as rows, run by run.
    """

    info: TensorInfo
    whole: Shape
    shape: Shape
    first_row: int
    run: int
    stride: int
    transposed: bool = False
    turned: bool = False

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return (self.info,)

    @property
    def is_together(self) -> bool:
        """True if its rows are neighbours in the tensor, in order."""
        return not (self.transposed or self.turned) and self.run == self.shape[0]

    def rows(self, start: int, stop: int) -> NDArray[np.int64]:
        """The rows of the tensor that rows start..stop of its runs are, in their order."""
        run, inside = np.divmod(np.arange(start, stop), self.run)
        found: NDArray[np.int64] = self.first_row + run * self.stride + inside
        return found

    def span(self, start: int, stop: int) -> tuple[int, int, NDArray[np.int64]]:
        """Range of the tensor's rows that rows start..stop lie in, and the index of each in that
        range."""
        rows = self.rows(start, stop)
        first, last = (int(rows.min()), int(rows.max()) + 1) if len(rows) else (0, 0)
        return first, last, rows - first

    def gathered(
        self, start: int, stop: int, read: Callable[[int, int], NDArray[Any]]
    ) -> NDArray[Any]:
        """Rows start..stop of the parameter; `read` gives rows of the tensor."""
        if not self.turned:
            first, last, places = self.span(start, stop)
            rows = read(first, last)
            return rows if self.is_together else rows[places]
        (columns,) = self.whole[1:]
        begin, end = start // columns, -(-stop // columns)
        first, last, places = self.span(begin * self.run, end * self.run)
        runs = read(first, last)[places].reshape(end - begin, self.run, columns)
        whole = runs.transpose(0, 2, 1).reshape(-1, self.run)
        return np.ascontiguousarray(whole[start - begin * columns : stop - begin * columns])


@dataclass(frozen=True, slots=True)
class Stacked:
    """Source of a parameter [E, ...]: of each expert the rows of its parts, in order."""

    experts: tuple[tuple[Source, ...], ...]
    shape: Shape

    @property
    def info(self) -> TensorInfo:
        """One tensor for all; they are of one dtype."""
        return self.experts[0][0].info

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return tuple(part.info for parts in self.experts for part in parts)


@dataclass(frozen=True, slots=True)
class Joined:
    """Source of a parameter that has the rows of its parts, one part after the other.

    A part that is None stands for zeros. `sizes` are the rows of each.
    """

    parts: tuple[Source | None, ...]
    sizes: tuple[int, ...]
    shape: Shape

    @property
    def info(self) -> TensorInfo:
        """One tensor for all; they are stored alike."""
        return self.infos[0]

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return tuple(part.info for part in self.parts if part is not None)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[Source | None, int, int]]:
        """Each part that rows start..stop lie in, and where its own begin and end there."""
        for part, size in zip(self.parts, self.sizes, strict=True):
            if start < size and stop > 0:
                yield part, max(0, start), min(stop, size)
            start, stop = start - size, stop - size


@dataclass(frozen=True, slots=True)
class Summed:
    """Source of a parameter [A * B, ...]: row a * B + b is the sum of two rows, of A and of B."""

    outer: Source
    inner: Source
    shape: Shape

    @property
    def info(self) -> TensorInfo:
        """One tensor for both; they are of one dtype."""
        return self.inner.info

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return self.outer.info, self.inner.info


@dataclass(frozen=True, slots=True)
class Multiplied:
    """Source of a parameter of products, as its rule says."""

    rule: Products
    parts: tuple[Source, ...]  # in the order of the rule's
    shape: Shape

    @property
    def info(self) -> TensorInfo:
        """One tensor for all; they are of one dtype."""
        return self.parts[0].info

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return tuple(part.info for part in self.parts)


@dataclass(frozen=True, slots=True)
class Decayed:
    """Source of a parameter that is -exp of the numbers of another."""

    logarithms: Source

    @property
    def shape(self) -> Shape:
        return self.logarithms.shape

    @property
    def info(self) -> TensorInfo:
        return self.logarithms.info

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return self.logarithms.infos


@dataclass(frozen=True, slots=True)
class Totaled:
    """Source of a parameter that is the sum of others."""

    parts: tuple[Source, ...]

    @property
    def shape(self) -> Shape:
        return self.parts[0].shape

    @property
    def info(self) -> TensorInfo:
        """One tensor for all; they are of one dtype."""
        return self.parts[0].info

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return tuple(part.info for part in self.parts)


AnySource = Source | Stacked | Joined | Summed | Multiplied | Decayed | Totaled
# Rules that make a parameter of several, or of one, in a way of theirs.
Made = Sums | Products | Decays | Totals | Join


@dataclass(frozen=True, slots=True, eq=False)
class SourcePiece:
    """Rows that a parameter takes from a tensor.

    `expert` is the place of an expert in a tensor that holds all of them; None in any other tensor.
    `made` is the rule by which it and others make the parameter, where that is not a stack.
    """

    rule: Rows
    shape: Shape
    expert: int | None = None
    made: Made | None = None

    @property
    def tensor(self) -> str:
        return self.rule.source

    @property
    def blocks(self) -> int:
        """The blocks of rows that its tensor consists of."""
        return self.rule.blocks or self.shape[0]

    @property
    def rows(self) -> int:
        """The rows of the tensor that are its own."""
        return self.blocks * self.shape[1] if self.rule.turned else self.shape[0]

    @property
    def columns(self) -> Shape:
        """The tensor's dimensions after the first."""
        return (self.shape[0] // self.blocks,) if self.rule.turned else self.shape[1:]


def pieces_of(rule: Rule, shape: Shape) -> tuple[SourcePiece, ...]:
    """The pieces of a parameter of that shape."""
    if isinstance(rule, Sums):
        height, *columns = shape
        parts = ((rule.outer, rule.count), (rule.inner, height // rule.count))
        return tuple(SourcePiece(each, (rows, *columns), made=rule) for each, rows in parts)
    if isinstance(rule, Products):
        outputs, vector = shape[0] // rule.count * shape[1], (rule.columns,)
        shapes = ((rule.count, *vector), (outputs, *vector), (outputs,), vector, vector)
        return tuple(
            SourcePiece(each, own, made=rule) for each, own in zip(rule.parts, shapes, strict=False)
        )
    if isinstance(rule, Decays):
        return (SourcePiece(_fitting(rule.rows, shape), shape, made=rule),)
    if isinstance(rule, Totals):
        return tuple(SourcePiece(_fitting(part, shape), shape, made=rule) for part in rule.parts)
    if isinstance(rule, Join):
        shares = ((size, *shape[1:]) for size in rule.sizes)
        return tuple(
            SourcePiece(_fitting(part, share), share, made=rule)
            for part, share in zip(rule.parts, shares, strict=True)
            if part is not None
        )
    if not isinstance(rule, Stack):
        return (SourcePiece(_fitting(rule, shape), shape),)
    experts, rows, *columns = shape
    share = (rows // len(rule.parts), *columns)
    return tuple(
        SourcePiece(
            _fitting(replace(part, source=part.source.replace(EXPERT, str(expert))), share),
            share,
            None if EXPERT in part.source or experts == 1 else expert,
        )
        for expert in range(experts)
        for part in rule.parts
    )


def _fitting(rule: Rows, shape: Shape) -> Rows:
    """A rule for a parameter of that shape: a vector is never transposed."""
    return replace(rule, transposed=rule.transposed and len(shape) > 1)


@dataclass(frozen=True, slots=True)
class PieceLayout:
    """Layout of pieces that share tensors: the place of each, and each tensor's required shape."""

    places: Mapping[SourcePiece, Source]
    shapes: Mapping[str, Shape]


_UNKNOWN = TensorInfo("", "", (), 0, 0)


def laid_out(pieces: Iterable[SourcePiece]) -> PieceLayout:
    """Lays out the pieces that share tensors; the sources do not know their tensors yet.

    Pieces of a tensor, or of one expert in it, follow each other in the order of their parts, but
    for those that others share.
    """
    sharing: dict[tuple[str, int | None, SourcePiece | None], list[SourcePiece]] = {}
    for piece in pieces:
        alone = piece if piece.rule.shared else None
        sharing.setdefault((piece.tensor, piece.expert, alone), []).append(piece)
    places: dict[SourcePiece, Source] = {}
    shapes: dict[str, Shape] = {}
    for (tensor, expert, _), together in sharing.items():
        made = _side_by_side(sorted(together, key=lambda piece: piece.rule.part))
        places |= made
        whole = made[together[0]].whole
        before = shapes.get(tensor, (0,))[0]
        shapes[tensor] = whole if expert is None else (before + 1, *whole)
    return PieceLayout(places, shapes)


def _side_by_side(pieces: Sequence[SourcePiece]) -> dict[SourcePiece, Source]:
    """The sources of pieces that share a matrix."""
    first, made = max(piece.rule.skip for piece in pieces), {}
    height = first + sum(piece.rows for piece in pieces)
    height += max(piece.rule.spare for piece in pieces)
    for piece in pieces:
        rule = piece.rule
        whole = (height, *piece.columns)
        made[piece] = Source(
            info=_UNKNOWN,
            whole=whole[::-1] if rule.transposed else whole,
            shape=piece.shape,
            first_row=first,
            run=piece.rows // piece.blocks,
            stride=height // piece.blocks,
            transposed=rule.transposed,
            turned=rule.turned,
        )
        first += piece.rows // piece.blocks
    return made


def sources_of(
    pieces: Mapping[str, Sequence[SourcePiece]],
    layout: PieceLayout,
    shapes: Mapping[str, Shape],
    infos: Mapping[str, TensorInfo],
) -> dict[str, AnySource]:
    """The source of each parameter all of whose tensors are there.

    Args:
        pieces: those of every parameter; layout: of all of them; shapes: of the parameters.
        infos: the tensors of the checkpoint.
    """
    found: dict[str, AnySource] = {}
    for name, own in pieces.items():
        if not all(piece.tensor in infos for piece in own):
            continue
        made = [replace(layout.places[p], info=_info_of(p, infos[p.tensor])) for p in own]
        rule = own[0].made
        if isinstance(rule, Sums):
            outer, inner = made
            found[name] = Summed(outer, inner, shapes[name])
        elif isinstance(rule, Products):
            found[name] = Multiplied(rule, tuple(made), shapes[name])
        elif isinstance(rule, Decays):
            found[name] = Decayed(made[0])
        elif isinstance(rule, Totals):
            found[name] = Totaled(tuple(made))
        elif isinstance(rule, Join):
            there = iter(made)
            joined = tuple(next(there) if part else None for part in rule.parts)
            found[name] = Joined(joined, rule.sizes, shapes[name])
        elif len(made) == 1 and made[0].shape == shapes[name]:
            found[name] = made[0]
        else:
            count = len(made) // shapes[name][0]
            experts = (tuple(made[at : at + count]) for at in range(0, len(made), count))
            found[name] = Stacked(tuple(experts), shapes[name])
    return found


def _info_of(piece: SourcePiece, info: TensorInfo) -> TensorInfo:
    """The tensor of a piece, or the part of it that is the piece's expert's."""
    if piece.expert is None:
        return info
    experts, *shape = info.shape
    if isinstance(info, EncodedTensor):
        return replace(info, shape=tuple(shape), encoding=OfExpert(info.encoding, piece.expert))
    size = (info.stop - info.start) // max(1, experts)
    start = info.start + piece.expert * size
    return replace(info, shape=tuple(shape), start=start, stop=start + size)


def shaped_as(info: TensorInfo, whole: Shape, *, flat: bool) -> TensorInfo:
    """A tensor that should have that shape: as one vector where it is flat, or else without the
    dimensions of 1 that it has beyond those, before its last one."""
    if flat:
        return replace(info, shape=(math.prod(info.shape),))
    longer = len(info.shape) > len(whole) and info.shape[-1:] == whole[-1:]
    if longer and _but_ones(info.shape) == _but_ones(whole):
        return replace(info, shape=whole)
    return info


def _but_ones(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)
