"""The rules by which a parameter is read from a tensor of the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rows:
    """A parameter that is some rows of a source tensor.

    The parameters that name the same source, in the order of `part`, are stacked in it.

    Args:
        source: name or template of the source tensor.
        part: position of the parameter in it, from 0.
        transposed: the source is stored as [columns, rows]; of a vector that is the vector itself.
    """

    source: str
    part: int = 0
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class HeadRows:
    """A parameter that is one part of every head of a source tensor.

    The source has the rows of one head after the other, and each head has parts of these sizes.
    A vector has elements instead of rows. The parameter has the heads in order, in two dimensions
    or in three: [heads * size, columns] or [heads, size, columns].

    Args:
        source: name or template of the source tensor.
        sizes: rows of the parts of a head, in order.
        part: which of them the parameter is, from 0.
        transposed: the parameter is [heads, columns, size].
    """

    source: str
    sizes: tuple[int, ...]
    part: int = 0
    transposed: bool = False


Rule = Rows | HeadRows
