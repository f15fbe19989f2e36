"""Config of a decoder layer: its mixer and its MLP.

A kind of mixer or of MLP is a frozen dataclass in a file of its own. It has `check` and the
properties that `AttentionConfig` and `MlpConfig` list last. It stands in the unions below, and in
the two tables that say what it becomes: `ingot.models.decoder_blueprint` and
`ingot.models.blocks.decoder`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ingot.models.attention_config import AttentionConfig
from ingot.models.latent_config import LatentConfig
from ingot.models.mlp_config import MlpConfig
from ingot.models.moe_config import MoeConfig
from ingot.models.per_layer_config import PerLayerConfig

Mixer: TypeAlias = AttentionConfig | LatentConfig
Mlp: TypeAlias = MlpConfig | MoeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """A layer: how tokens meet, and what is then made of each.

    Attributes:
        input_norm: it begins with a norm, where the norms of its model stand there.
        per_layer: what it adds from an input of its own, last; None adds nothing.
        scalar: what it gives is multiplied with a learned number.
    """

    mixer: Mixer
    mlp: Mlp
    input_norm: bool = True
    per_layer: PerLayerConfig | None = None
    scalar: bool = False

    def check(self) -> None:
        """Raises ContradictionError for values that cannot be together."""
        self.mixer.check()
        self.mlp.check()

    @property
    def temporary_width(self) -> int:
        """About how many values its parts make of a token."""
        beside = self.per_layer.temporary_width if self.per_layer else 0
        return self.mixer.temporary_width + self.mlp.temporary_width + beside
