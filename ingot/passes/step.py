"""What the pipeline is made of: steps, the facts that they expect counts from, and options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

from torch.fx import GraphModule

Tier = Literal["exact", "numeric"]
Invariant = Callable[[GraphModule], list[str]]


class Facts(Protocol):
    """What a pass may know of the model: fields of ModelConfig."""

    @property
    def num_layers(self) -> int: ...
    @property
    def qk_norm(self) -> bool: ...
    @property
    def hidden_act(self) -> Any: ...


class Options(Protocol):
    """What the user chooses: fields of the compile options."""

    @property
    def dtype(self) -> str: ...
    @property
    def disable_passes(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, kw_only=True)
class PassOptions:
    """`dtype` "float32" or "bfloat16", and the names of optional passes to leave out."""

    dtype: str = "float32"
    disable_passes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    """One pass of the pipeline.

    function   the pass: function(gm, *, target) edits the graph and returns how often it matched
    needs      invariants that must hold before it; they also hold again after it
    gives      invariants that hold from then on
    expect     how often it must match, from the facts; None where the model does not tell
    tier       "exact": no value is computed or rounded otherwise; "numeric": it may be
    tolerance  relative error of the logits that verification allows; 0 means bitwise
    anchors    calls that are left over where the pass should have matched but did not
    optional   whether the graph is valid without it
    """

    function: Callable[..., int]
    needs: tuple[Invariant, ...] = ()
    gives: tuple[Invariant, ...] = ()
    expect: Callable[[Facts], int] | None = None
    tier: Tier = "exact"
    tolerance: float = 0.0
    anchors: tuple[Any, ...] = ()
    optional: bool = False

    @property
    def name(self) -> str:
        function = self.function
        return (function.func if isinstance(function, partial) else function).__name__

    @property
    def doc(self) -> str:
        function = self.function
        return (function.func if isinstance(function, partial) else function).__doc__ or ""
