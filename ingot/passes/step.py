"""What the pipeline is made of: steps, and the facts that they expect counts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

from torch.fx import GraphModule

DTYPES = ("float32", "bfloat16")

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
    @property
    def head_dim(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...


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
    follows    the names of optional passes that make what it looks for: it is left out with them
    dtypes     the dtypes of a compile that it belongs to
    option     the option of a compile that asks for it; empty where every compile has it
    """

    function: Callable[..., int]
    needs: tuple[Invariant, ...] = ()
    gives: tuple[Invariant, ...] = ()
    expect: Callable[[Facts], int] | None = None
    tier: Tier = "exact"
    tolerance: float = 0.0
    anchors: tuple[Any, ...] = ()
    optional: bool = False
    follows: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    option: str = ""

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
