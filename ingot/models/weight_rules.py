"""The rules by which a parameter is read from tensors of the checkpoint."""

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
        blocks: the source consists of so many blocks of rows, such as one for each head. In every
            block the parameters follow on each other, each with its share of rows. 0 is as many
            blocks as a parameter has rows: of two parts, one has the even rows.
        turned: of each block the parameter has its share transposed: the rows of the parameter are
            the columns of the first block's share, then those of the second's.
        skip, spare: rows at the source's start, and at its end, that no parameter has.
        flat: the source has more dimensions than the parameter, a vector of all its elements.
        shared: other parameters are the same rows.
    """

    source: str
    part: int = 0
    transposed: bool = False
    blocks: int = 1
    turned: bool = False
    flat: bool = False
    skip: int = 0
    spare: int = 0
    shared: bool = False


EXPERT = "{e}"


@dataclass(frozen=True, slots=True)
class Stack:
    """A parameter [E, ...]: of each expert the rows of its parts, one part after the other.

    Args:
        parts: where an expert's rows come from, each with an equal share. In a template `{e}`
            stands for the number of the expert, from 0; a source without it holds all experts.
    """

    parts: tuple[Rows, ...]


@dataclass(frozen=True, slots=True)
class Sums:
    """A parameter [A * B, ...]: row a * B + b is row a of one tensor plus row b of another.

    Args:
        outer: the tensor of A rows; count: how many these are.
        inner: the tensor of B rows.
    """

    outer: Rows
    inner: Rows
    count: int


@dataclass(frozen=True, slots=True)
class Products:
    """A parameter [H * B, D]: for each head the products of B rows, which may be normalised, with
    the D rows of a matrix that are the head's.

    Args:
        table: the tensor [B, C]; count: B; columns: C.
        matrix: the tensor [H * D, C]; bias: [H * D], added to products.
        norm: weight and bias of a layer norm of the table; none: it is multiplied as it is.
        eps: of that norm.
    """

    table: Rows
    matrix: Rows
    bias: Rows
    count: int
    columns: int
    norm: tuple[Rows, ...] = ()
    eps: float = 0.0

    @property
    def parts(self) -> tuple[Rows, ...]:
        """All that it is made of."""
        return (self.table, self.matrix, self.bias, *self.norm)


@dataclass(frozen=True, slots=True)
class Decays:
    """A parameter that is -exp of the numbers of a tensor, which stores logarithms of rates."""

    rows: Rows


@dataclass(frozen=True, slots=True)
class Totals:
    """A parameter that is the sum of several tensors of its shape, number by number."""

    parts: tuple[Rows, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """A parameter that has so many rows of each part, one part after the other.

    Args:
        parts: where the rows come from, all of them stored alike; None stands for zeros, such as
            the bias of outputs that have none. sizes: how many rows each part gives.
    """

    parts: tuple[Rows | None, ...]
    sizes: tuple[int, ...]


Rule = Rows | Stack | Sums | Products | Decays | Totals | Join
# A name or a template stands for all rows of that tensor.
Entry = str | Rule
