"""The elements of the pipeline: a pass, and all that the runner must know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch.fx import GraphModule

DTYPES = ("float32", "bfloat16", "float16")

Tier = Literal["exact", "numeric"]
Invariant = Callable[[GraphModule], list[str]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Pass:
    """One pass of the pipeline.

    function   the pass: function(gm) edits the graph and returns how often it matched
    needs      invariants that must hold before it; they also hold again after it
    gives      invariants that hold from then on
    expect     how often it must match: as often as the model's blocks say that they become this,
               or that number; None where blocks do not tell
    tier       "exact": no value is computed or rounded otherwise; "numeric": it may be
    tolerance  relative error of the logits that verification allows; 0 means bitwise
    anchors    calls that are left over where the pass should have matched but did not
    optional   whether the graph is valid without it
    dtypes     the dtypes of a compile that it belongs to
    """

    function: Callable[..., int]
    needs: tuple[Invariant, ...] = ()
    gives: tuple[Invariant, ...] = ()
    expect: str | int | None = None
    tier: Tier = "exact"
    tolerance: float = 0.0
    anchors: tuple[Any, ...] = ()
    optional: bool = False
    dtypes: tuple[str, ...] = DTYPES

    @property
    def name(self) -> str:
        return self._plain.__name__

    @property
    def doc(self) -> str:
        return self._plain.__doc__ or ""

    @property
    def _plain(self) -> Callable[..., int]:
        """The function without arguments that are bound to it."""
        return self.function.func if isinstance(self.function, partial) else self.function
