"""Config of a decoder layer: its mixer and its MLP.

A kind of mixer or of MLP is a frozen dataclass in a file of its own. It has `check` and the
properties that `AttentionConfig` and `MlpConfig` list last; `KeepsRecord` has some of them. It
stands in the unions below, and in the two tables that say what it becomes:
`ingot.models.decoder_blueprint` and `ingot.models.blocks.decoder`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ingot.errors import ContradictionError
from ingot.models.attention_config import AttentionConfig
from ingot.models.delta_config import DeltaConfig
from ingot.models.latent_config import LatentConfig
from ingot.models.mamba2_config import Mamba2Config
from ingot.models.mamba_config import MambaConfig
from ingot.models.mlp_config import MlpConfig
from ingot.models.moe_config import MoeConfig
from ingot.models.per_layer_config import PerLayerConfig
from ingot.models.rwkv_config import ChannelMixConfig, TimeMixConfig
from ingot.models.short_conv_config import ShortConvConfig

Mixer: TypeAlias = (
    AttentionConfig
    | LatentConfig
    | ShortConvConfig
    | Mamba2Config
    | MambaConfig
    | DeltaConfig
    | TimeMixConfig
)
Mlp: TypeAlias = MlpConfig | MoeConfig | ChannelMixConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """A layer: how tokens meet, and what is then made of each. It may have one of the two alone.

    Attributes:
        input_norm: it begins with a norm, where the norms of its model stand there.
        per_layer: what it adds from an input of its own, last; None adds nothing.
        scalar: what it gives is multiplied with a learned number.
    """

    mixer: Mixer | None = None
    mlp: Mlp | None = None
    input_norm: bool = True
    per_layer: PerLayerConfig | None = None
    scalar: bool = False

    def check(self) -> None:
        """Raises ContradictionError for values that cannot be together, and for no part at all."""
        if not self.parts:
            raise ContradictionError(
                "a layer has neither a mixer nor an MLP", hint="give each layer one of them"
            )
        for part in self.parts:
            part.check()

    @property
    def parts(self) -> tuple[Mixer | Mlp, ...]:
        """What it has of a mixer and an MLP, in the order in which they run."""
        return tuple(part for part in (self.mixer, self.mlp) if part is not None)

    @property
    def temporary_width(self) -> int:
        """About how many values its parts make of a token."""
        beside = self.per_layer.temporary_width if self.per_layer else 0
        return sum(part.temporary_width for part in self.parts) + beside
