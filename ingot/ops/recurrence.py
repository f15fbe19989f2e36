"""recurrence: a matrix for each head that decays, takes up a row, and is read, token by token.

State-space duality (Mamba-2, arXiv 2405.21060), the gated delta rule (arXiv 2412.06464) and the
generalised delta rule (RWKV-7, arXiv 2503.14456) differ in what a token corrects before it is
taken up.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ingot.artifact.cells import GRID
from ingot.ops.cells import in_cells
from ingot.ops.records import runs
from ingot.ops.registry import register, rounded

RULES = ("add", "delta", "low_rank")


def advance(state: Tensor, rule: str, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """One token of sequences or of one: state [..., H, D, P] and its rows by the names of
    `reference`, q, k [..., H, D], v [..., H, P], decay [..., H, D or 1] and so on -> (out
    [..., H, P], state)."""
    k, v = rows["k"], rows["v"]
    kept = torch.exp(rows["decay"])[..., None] * state
    if rule == "low_rank":
        kept = kept - rows["b"][..., None] * read(state, rows["a"])[..., None, :]
    if rule == "delta":
        v = v - read(kept, k)
    if "beta" in rows:
        v = rows["beta"][..., None] * v
    state = kept + k[..., None] * v[..., None, :]
    return read(state, rows["q"]), state


def read(state: Tensor, q: Tensor) -> Tensor:
    """state [..., D, P], q [..., D] -> [..., P]: the sum of its rows, each times a number."""
    return torch.einsum("...d,...dp->...p", q, state)


@rounded
def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    rule: str,
    beta: Tensor | None = None,
    a: Tensor | None = None,
    b: Tensor | None = None,
    skip: Tensor | None = None,
    state: Tensor | None = None,
    spans: Tensor | None = None,
    records: Tensor | None = None,
    grid: int = 0,
) -> Tensor:
    """q, k [1, N, G, D], v [1, N, H, P] -> [1, N, H, P]: what each token reads of its sequence.

    Head h has the query and the key of head h // (H / G), and a matrix S [D, P] that begins as
    zeros. For each token, with e = exp(decay) of the head, [1, N, H], or of each of its D rows,
    [1, N, H, D]:

        rule "add"       S = e S + k (beta v)'
        rule "delta"     S = e S,  then  S = S + k (beta (v - S'k))'
        rule "low_rank"  S = e S - b (S'a)' + k v', where S'a is of S as it was before
        out = S'q, plus skip v where there is a skip [H]

    beta [1, N, H] is 1 where it is None; a and b [1, N, H, D] are those of "low_rank" alone.

    Without `state`, rows are one whole sequence. With it, they are those of several, as `spans`
    says; the record of each, state [slots, H * D, P], is S as its tokens before have left it. With
    a `grid` tokens are taken up that many at a time, in cells: see `ingot.ops.cells`, also for the
    records of that. So is a whole sequence, always: it takes a fraction of the time.
    """
    if grid or state is None:
        return in_cells(
            {"q": q, "k": k, "v": v, "decay": decay, "beta": beta, "a": a, "b": b},
            rule, skip, state, spans, records, grid or GRID,
        )  # fmt: skip
    heads, size, width = v.shape[2], k.shape[3], v.shape[3]
    q, k = (x.float().repeat_interleave(heads // x.shape[2], dim=2) for x in (q, k))
    decay = (decay[..., None] if decay.dim() == 3 else decay).float()
    given = {"q": q, "k": k, "v": v, "decay": decay, "beta": beta, "a": a, "b": b}
    rows = {name: x[0].float() for name, x in given.items() if x is not None}
    out = torch.zeros(v.shape, device=v.device)
    for own, matrix, kept, _ in runs(v, (heads * size, width), state, spans, records):
        matrix = matrix.view(heads, size, width)
        for t in range(own.start, own.stop):
            token = {name: x[t] for name, x in rows.items()}
            out[0, t], matrix = advance(matrix, rule, token)
        if kept is not None:
            kept.copy_(matrix.reshape(kept.shape))
    return out if skip is None else out + skip.float()[:, None] * v.float()


register(
    "recurrence",
    reference,
    lambda a: a.v.new_empty(a.v.shape, dtype=a.out_dtype),
    record=lambda a: (int(a.v.shape[2]) * int(a.k.shape[3]), int(a.v.shape[3])),
)
