"""lerp: a step from one row towards another, by a share for each column."""

from __future__ import annotations

from torch import Tensor

from ingot.ops.registry import like, register, rounded


@rounded
def reference(x: Tensor, y: Tensor, share: Tensor | None, weight: Tensor | None) -> Tensor:
    """x, y [..., C] -> x + (y - x) * share [..., C].

    The shares are rows of their own, `share` [..., C], or the same for all rows, `weight` [C]: one
    of the two is None.
    """
    shares = weight if share is None else share
    assert shares is not None
    return x.float() + (y.float() - x.float()) * shares.float()


register("lerp", reference, lambda a: like(a.x, a.out_dtype))
