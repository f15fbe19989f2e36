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
    """

    source: str
    part: int = 0
    transposed: bool = False
    blocks: int = 1


@dataclass(frozen=True, slots=True)
class HeadRows:
    """A parameter that is one part of every head of a source tensor.

    The source has the rows of one head after the other, and each head has parts of these sizes;
    a vector has elements instead. So has the parameter, with that part alone of each head.

    Args:
        source: name or template of the source tensor.
        sizes: rows of the parts of a head, in order.
        part: which of them the parameter is, from 0.
        columns: those of the source if each head's part is transposed: the parameter is
            [heads * columns, size]. 0 if none is.
    """

    source: str
    sizes: tuple[int, ...]
    part: int = 0
    columns: int = 0


EXPERT = "{e}"


@dataclass(frozen=True, slots=True)
class Stack:
    """A parameter [E, ...]: of each expert the rows of its parts, one part after the other.

    Args:
        parts: where an expert's rows come from, each with an equal share. In a template `{e}`
            stands for the number of the expert, from 0; a source without it holds all experts.
    """

    parts: tuple[Rows, ...]


Rule = Rows | HeadRows | Stack
# A name or a template stands for all rows of that tensor.
Entry = str | Rule
