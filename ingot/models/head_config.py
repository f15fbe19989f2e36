"""What a model makes of a whole text: one row of its rows, and layers upon that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ingot.models.mlp_config import Activation

Pooling = Literal["first", "max", "mean", "mean_sqrt", "weighted_mean", "sum", "last"]
HeadActivation = Activation | Literal["none", "tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseConfig:
    """norm(act(dense(x))) of a pooled row.

    Attributes:
        size: of its result.
        bias: dense has one.
        activation: act.
        norm: there is a norm, of the model's kind.
        source: what the names of its tensors begin with, where no family says it.
    """

    size: int
    bias: bool = True
    activation: HeadActivation = "none"
    norm: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedConfig:
    """What gives each token a score for every token of the vocabulary.

    Attributes:
        transform: the layer before the product that makes them.
        bias: the product has one.
        tied: its matrix is that of the embeddings.
    """

    transform: DenseConfig
    bias: bool = True
    tied: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """What stands on the layers of a model that reads whole texts.

    Attributes:
        pooling: how the rows of a text become one: the first or the last of them, the largest
            number of each column, their mean, their sum by the root of their number, or a mean in
            which row n counts n times. What several ways make lies side by side. Without
            any, all rows are kept.
        layers: what follows, in order.
        labels: what the numbers of the last layer score; none of a vector.
        masked: what gives tokens scores, where the checkpoint has it.
        log1ps: of a SPLADE head, which pools such scores and has no layers: how often a score x
            becomes log(1 + max(x, 0)).
    """

    pooling: tuple[Pooling, ...]
    layers: tuple[DenseConfig, ...] = ()
    labels: tuple[str, ...] = ()
    masked: MaskedConfig | None = None
    log1ps: int = 0

    def read(self, row_size: int) -> int:
        """Columns of what the layers read."""
        return row_size * max(len(self.pooling), 1)

    def width(self, row_size: int) -> int:
        """Columns of the row that a text becomes."""
        return self.layers[-1].size if self.layers else self.read(row_size)
