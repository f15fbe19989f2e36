"""A recurrence in cells: a grid of tokens, from the first of a sequence on.

In exact numbers it is the recurrence token by token. What the tokens of a cell read of the matrix S
that their cell began with is a product for all of them at once, and so is what they read of each
other; S moves where a cell is complete. The grid is the sequence's own, so that the numbers that a
token is computed from do not depend on where steps begin. What does not depend on S is computed for
many cells at once: only S goes from cell to cell.

Decays are factors exp(w + w' + ...) of the tokens in between. Their sums are taken term by term,
and none is divided by another: a factor is at most 1, and small ones become 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ingot.artifact.cells import Cells
from ingot.ops.records import runs

Rows = Mapping[str, Tensor]

# Cells computed at a time. Bounds the memory of decays between all pairs of tokens of a cell.
CELLS_AT_ONCE = 16


class Taken(NamedTuple):
    """What the matrices take up of the tokens of c cells: keys times values.

    Attributes:
        keys: [c, H, n, D].
        met: [c, H, n, n]: the products of the query of each row with the keys up to it, as decayed.
        values: [c, H, n, P]; of a correction the part that does not depend on S.
        reads: [c, H, n, D]: what a correction reads of S, the rest of its values; else None.
    """

    keys: Tensor
    met: Tensor
    values: Tensor
    reads: Tensor | None = None

    def complete(self, matrices: Tensor) -> Tensor:
        """The values where S is this as the cells begin [c, H, D, P]."""
        return self.values if self.reads is None else self.values + self.reads @ matrices


def in_cells(
    given: Mapping[str, Tensor | None],
    rule: str,
    skip: Tensor | None,
    state: Tensor | None,
    spans: Tensor | None,
    records: Tensor | None,
    grid: int,
) -> Tensor:
    """What `recurrence` gives, float32; the record of a sequence is as `artifact.cells` says.

    Args:
        given: q, k, v, decay, beta, a and b as of `recurrence`.
        grid: tokens of a cell.
    """
    rows = {name: x[0].float() for name, x in given.items() if x is not None}
    v = rows["v"]
    cells = Cells({name: tuple(x.shape[1:]) for name, x in rows.items()}, grid)
    out = torch.zeros(v.shape, device=v.device)
    for own, record, kept, first in runs(v[None], cells.record, state, spans, records):
        fill = first % grid
        after = with_ring(cells, record, {name: x[own] for name, x in rows.items()}, fill)
        matrix = matrices_of(cells, record if first >= grid else torch.zeros_like(record))
        read, matrices = through(matrix, after, rule, grid)
        out[own] = read[fill:]
        if kept is not None:
            whole = len(after["v"]) // grid
            last = {name: x[whole * grid :] for name, x in after.items()}
            kept.copy_(stored(cells, matrices[whole], last))
    out = out if skip is None else out + skip.float()[:, None] * v
    return out[None]


def with_ring(cells: Cells, record: Tensor, rows: Rows, fill: int) -> dict[str, Tensor]:
    """The rows of a sequence from the beginning of its cell on, `fill` of them from its record.

    Queries are not kept: those of the record are zeros.
    """
    height, width = cells.matrices
    ring = record.reshape(-1)[height * width :][: fill * cells.row].view(fill, cells.row)
    found = {}
    for name, own in rows.items():
        if name in cells.columns:
            begin = cells.offsets[name]
            before = ring[:, begin : begin + cells.columns[name]]
        else:
            before = own.new_zeros((fill, *own.shape[1:]))
        found[name] = torch.cat((before.view(fill, *own.shape[1:]), own))
    return found


def stored(cells: Cells, matrices: Tensor, rows: Rows) -> Tensor:
    """The record of a sequence; these rows are those of a cell that is not complete."""
    record = matrices.new_zeros(cells.record)
    height, width = cells.matrices
    record[:height] = matrices.reshape(height, width)
    ring = torch.cat([rows[name].flatten(1) for name in cells.columns], 1).reshape(-1)
    record.view(-1)[height * width :][: len(ring)] = ring
    return record


def matrices_of(cells: Cells, record: Tensor) -> Tensor:
    """S of every head, [H, D, P]."""
    heads, width = cells.shapes["v"]
    return record[: cells.matrices[0]].view(heads, -1, width)


def through(matrix: Tensor, rows: Rows, rule: str, grid: int) -> tuple[Tensor, list[Tensor]]:
    """What rows from a grid point on read [N, H, P], and S [H, D, P] at that point and after each
    cell. A last cell that is not complete is taken up as if no tokens followed."""
    read, matrices = [], [matrix]
    for cells in cut(rows, grid):
        made, moved = advance(matrices[-1], cells, rule)
        read.append(made.transpose(1, 2).flatten(0, 1))
        matrices += moved
    return torch.cat(read)[: len(rows["v"])], matrices


def cut(rows: Rows, grid: int) -> Iterator[dict[str, Tensor]]:
    """Rows as cells of each head, [c, H, n, ..], some at a time. Rows of zeros complete the last:
    they change nothing."""
    heads, count = rows["v"].shape[1], CELLS_AT_ONCE * grid
    for begin in range(0, len(rows["v"]), count):
        found = {}
        for name, x in rows.items():
            part = x[begin : begin + count]
            part = part[..., None] if part.dim() == 2 else part
            part = pad(part, (0, 0, 0, 0, 0, -len(part) % grid)).unflatten(0, (-1, grid))
            found[name] = part.transpose(1, 2).repeat_interleave(heads // x.shape[1], 1)
        yield found


def advance(matrix: Tensor, rows: Rows, rule: str) -> tuple[Tensor, list[Tensor]]:
    """Cells that follow each other: what their rows read [c, H, n, P], and S [H, D, P] after each.

    Args:
        rows: [c, H, n, D] or [c, H, n, P] by name; beta, and decays of heads, [c, H, n, 1].
    """
    decay = rows["decay"]
    since, rest = summed(decay, torch.ge), summed(decay, torch.lt)
    parts = taken(rows, rule, since)
    matrices = moved(matrix, since[..., -1, :, None], rest, parts)
    began = torch.stack([matrix, *matrices[:-1]])
    out = (since * rows["q"]) @ began
    for part in parts:
        out = out + part.met @ part.complete(began)
    return out, matrices


def taken(rows: Rows, rule: str, since: Tensor) -> list[Taken]:
    """What S takes up by each rule; rows have kept `since` of the S that their cell began with."""
    q, k, v, until = rows["q"], rows["k"], rows["v"], between(rows["decay"])
    beta = rows.get("beta", torch.ones_like(v[..., :1]))
    if rule == "add":
        (of_q,) = met([q], k, until)
        return [Taken(k, of_q, beta * v)]
    if rule == "delta":
        of_q, of_k = met([q, k], k, until)
        values, reads = solved(beta * of_k, beta * v, -beta * since * k)
        return [Taken(k, of_q, values, reads)]
    # What a row's correction reads is as decayed as what the row before it reads.
    a, b, since = rows["a"], -rows["b"], summed(rows["decay"], torch.gt)
    k_of_q, k_of_a = met([q, a.roll(-1, -2)], k, until)
    b_of_q, b_of_a = met([q, a.roll(-1, -2)], b, until)
    values, reads = solved(-one_down(b_of_a), one_down(k_of_a) @ v, since * a)
    return [Taken(k, k_of_q, v), Taken(b, b_of_q, values, reads)]


def one_down(weights: Tensor) -> Tensor:
    """The rows [.., n, n], each one place further down; zeros are the first."""
    return pad(weights[..., :-1, :], (0, 0, 1, 0))


def moved(matrix: Tensor, fades: Tensor, rest: Tensor, parts: Sequence[Taken]) -> list[Tensor]:
    """S after each cell, of which it keeps `fades` [c, H, D or 1, 1]."""
    steps = [
        zip((rest * keys).mT.unbind(), values.unbind(), _unbound(reads, len(values)), strict=True)
        for keys, _, values, reads in parts
    ]
    matrices = list[Tensor]()
    for fade, *cell in zip(fades.unbind(), *steps, strict=True):
        new = fade * matrix
        for keys, values, reads in cell:
            complete = values if reads is None else torch.baddbmm(values, reads, matrix)
            new = torch.baddbmm(new, keys, complete)
        matrices.append(matrix := new)
    return matrices


def _unbound(x: Tensor | None, count: int) -> Sequence[Tensor | None]:
    return [None] * count if x is None else x.unbind()


def summed(decay: Tensor, counts: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """exp of the sum of the decays [.., n, D] of those rows that row i counts: counts(i, row)."""
    n = torch.arange(decay.shape[-2], device=decay.device)
    return torch.exp(counts(n[:, None], n).float() @ decay)


def between(decay: Tensor) -> Tensor:
    """exp of the sum of decays [.., n, D] after row j, up to row i: [.., i, j, D]."""
    n = torch.arange(decay.shape[-2], device=decay.device)
    inside = (n > n[:, None]) & (n <= n[:, None, None])
    sums = inside.float().flatten(0, 1) @ decay
    return torch.exp(sums.view(*decay.shape[:-2], len(n), len(n), -1))


def met(readers: Sequence[Tensor], keys: Tensor, until: Tensor) -> Sequence[Tensor]:
    """Products [.., i, j] of row i of each reader [.., n, D] with the keys j up to it, of which
    `until` [.., i, j, D or 1] is left in row i."""
    if until.shape[-1] == 1:
        return [(x @ keys.mT * until[..., 0]).tril() for x in readers]
    products = (until * keys[..., None, :, :]) @ torch.stack([*readers], -1)
    return products.movedim(-1, 0).tril().unbind()


def solved(weights: Tensor, *wanted: Tensor) -> Iterable[Tensor]:
    """x of x + weights x = wanted, for each; row i has weights [.., i, j] of rows j < i, and others
    do not count."""
    joined = torch.cat(wanted, -1)
    found = torch.linalg.solve_triangular(weights, joined, upper=False, unitriangular=True)
    return torch.split(found, [x.shape[-1] for x in wanted], -1)


__all__ = ["in_cells"]
