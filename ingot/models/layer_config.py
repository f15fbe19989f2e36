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
from ingot.models.rwkv_config import ChannelMixConfig, TimeMixConfig

Mixer: TypeAlias = AttentionConfig | LatentConfig | TimeMixConfig
Mlp: TypeAlias = MlpConfig | MoeConfig | ChannelMixConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """A layer: how tokens meet, and what is then made of each.

    `input_norm`: it begins with a norm, where the norms of its model stand there.
    """

    mixer: Mixer
    mlp: Mlp
    input_norm: bool = True

    def check(self) -> None:
        """Raises ContradictionError for values that cannot be together."""
        self.mixer.check()
        self.mlp.check()
