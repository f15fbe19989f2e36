"""Input of a layer beside the residual stream, as a config holds it."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.models.mlp_config import Activation


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerConfig:
    """norm(up(act(down(x)) * e)), which is added to the stream x. With x0, what the first layer
    read of the token, e = norm(P x0 / sqrt(hidden_size)) is an input that each layer has made for
    itself.

    Attributes:
        size: of e.
        activation: act.
    """

    size: int
    activation: Activation

    @property
    def temporary_width(self) -> int:
        """About how many values it makes of a token."""
        return 3 * self.size
