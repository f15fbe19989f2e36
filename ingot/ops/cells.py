"""A recurrence in cells: a grid of tokens, from the first of a sequence on.

In exact numbers it is the recurrence token by token. What the tokens of a cell read of the matrix S
that their cell began with is a product for all of them at once, and so is what they read of each
other; S moves where a cell is complete. The grid is the sequence's own, so that the numbers that a
token is computed from do not depend on where steps begin.

Decays are factors exp(w + w' + ...) of the tokens in between. Their sums are taken term by term,
and none is divided by another: a factor is at most 1, and small ones become 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ingot.artifact.cells import Cells
from ingot.ops.records import runs

Rows = Mapping[str, Tensor]


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
        matrices = matrices_of(cells, record if first >= grid else torch.zeros_like(record))
        read = []
        for cell in range(0, len(after["v"]), grid):
            last = {name: x[cell : cell + grid] for name, x in after.items()}
            made, matrices = advance(matrices, by_head(last), rule, complete(last, grid))
            read.append(made)
        out[own] = torch.cat(read)[fill:]
        if kept is not None:
            kept.copy_(stored(cells, matrices, {} if complete(last, grid) else last))
    out = out if skip is None else out + skip.float()[:, None] * v
    return out[None]


def complete(rows: Rows, grid: int) -> bool:
    return len(rows["v"]) == grid


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
    """The record of a sequence, whose last cell has these rows."""
    record = matrices.new_zeros(cells.record)
    height, width = cells.matrices
    record[:height] = matrices.reshape(height, width)
    parts = [rows[name].flatten(1) for name in cells.columns if name in rows]
    if parts:
        ring = torch.cat(parts, 1).reshape(-1)
        record.view(-1)[height * width :][: len(ring)] = ring
    return record


def matrices_of(cells: Cells, record: Tensor) -> Tensor:
    """S of every head, [H, D, P]."""
    heads, width = cells.shapes["v"]
    return record[: cells.matrices[0]].view(heads, -1, width)


def by_head(rows: Rows) -> dict[str, Tensor]:
    """Rows with a query, a key and a decay for each head: [n, H, D], or [n, H, 1] of a decay."""
    heads, decay = rows["v"].shape[1], rows["decay"]
    spread = {
        name: rows[name].repeat_interleave(heads // rows[name].shape[1], 1) for name in ("q", "k")
    }
    return {**rows, **spread, "decay": decay[..., None] if decay.dim() == 2 else decay}


def advance(matrix: Tensor, rows: Rows, rule: str, moves: bool) -> tuple[Tensor, Tensor]:
    """A cell: what its rows read [n, H, P], and S [H, D, P], after it if that `moves`."""
    q, k, v, decay = (rows[name] for name in ("q", "k", "v", "decay"))
    n = torch.arange(len(v))
    until = between(n, decay, through=True)  # [i, j]: by what row j has decayed in row i
    since = torch.exp(torch.einsum("im,mhd->ihd", (n <= n[:, None]).float(), decay))
    rest = torch.exp(torch.einsum("im,mhd->ihd", (n > n[:, None]).float(), decay))
    beta = rows.get("beta", torch.ones(v.shape[:2]))
    added = beta[..., None] * v
    taken = [(k, added)]
    if rule == "delta":
        read = beta[..., None] * seen(since * k, matrix)
        weights = beta.T[:, :, None] * met(k, k, until).tril(-1)
        taken = [(k, solved(weights, added - read))]
    if rule == "low_rank":
        a, b = rows["a"], rows["b"]
        before = between(n, decay, through=False)
        old = torch.exp(torch.einsum("im,mhd->ihd", (n < n[:, None]).float(), decay))
        read = seen(old * a, matrix) + shared(met(a, k, before).tril(-1), v)
        removed = solved(met(a, b, before).tril(-1), read)
        taken.append((-b, removed))
    out = seen(since * q, matrix)
    for key, value in taken:
        out = out + shared(met(q, key, until).tril(), value)
    if moves:
        matrix = since[-1][..., None] * matrix
        for key, value in taken:
            matrix = matrix + torch.einsum("jhd,jhp->hdp", rest * key, value)
    return out, matrix


def between(n: Tensor, decay: Tensor, *, through: bool) -> Tensor:
    """exp of the sum of decays [n, H, D] after row j, up to row i, or up to the one before it."""
    i, j, m = n[:, None, None], n[None, :, None], n[None, None, :]
    inside = (m > j) & ((m <= i) if through else (m < i))
    return torch.exp(torch.einsum("ijm,mhd->ijhd", inside.float(), decay))


def met(x: Tensor, y: Tensor, decayed: Tensor) -> Tensor:
    """Products [H, i, j] of rows x and y [n, H, D], by key channel decayed [i, j, H, D or 1]."""
    decayed = decayed.expand(*decayed.shape[:3], x.shape[2])
    return torch.einsum("ihd,jhd,ijhd->hij", x, y, decayed)


def seen(x: Tensor, matrix: Tensor) -> Tensor:
    """What rows [n, H, D] read of the matrix: [n, H, P]."""
    return torch.einsum("ihd,hdp->ihp", x, matrix)


def shared(weights: Tensor, values: Tensor) -> Tensor:
    """Values [n, H, P] of earlier rows by weights [H, i, j]: [n, H, P]."""
    return torch.einsum("hij,jhp->ihp", weights, values)


def solved(weights: Tensor, values: Tensor) -> Tensor:
    """x of x + weights x = values [n, H, P], where weights [H, i, j] are 0 from the diagonal on."""
    x = values.clone()
    for i in range(1, len(values)):
        x[i] = values[i] - torch.einsum("hj,jhp->hp", weights[:, i, :i], x[:i])
    return x


__all__ = ["in_cells"]
