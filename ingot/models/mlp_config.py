"""MLPs, as a config holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
MlpKind = Literal["gated", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpConfig:
    """A dense MLP.

    Attributes:
        kind: down(act(gate(x)) * up(x)), or down(act(up(x))).
        size: width between up and down.
        activation: act.
        bias: biases of all its linears.
    """

    kind: MlpKind = "gated"
    size: int
    activation: Activation
    bias: bool = False

    # What a model asks of every kind of MLP.

    def check(self) -> None:
        """Raises ContradictionError for values that cannot be together; here all can."""

    @property
    def records(self) -> tuple[tuple[int, int], ...]:
        """What is kept of a sequence as a whole; nothing."""
        return ()

    @property
    def temporary_width(self) -> int:
        """About how many values it makes of a token. Of a plain MLP some store bytes."""
        return 3 * self.size if self.kind == "gated" else self.size // 2

    @property
    def described(self) -> str:
        """Description in a few words."""
        return f"{self.kind} MLP of {self.size}"

    @property
    def biased(self) -> tuple[str, ...]:
        """Its linears that have a bias."""
        return ("MLP",) if self.bias else ()
