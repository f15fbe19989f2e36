"""Quality of an artifact's numbers against those of the checkpoint. No torch."""

from __future__ import annotations

from dataclasses import dataclass

MAX_KL = 0.5  # beyond this a model is ruined
WARN_KL = 0.1
LEAST_COSINE = 0.98  # below this vectors are ruined


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The cost of number formats on text, measured as `llama-perplexity --kl-divergence` does.

    Both models read the same text. The base has the checkpoint's own numbers and computes in
    float32. Ours has the numbers that the artifact stores, and rounds what its targets round.

    Attributes:
        positions: that were scored.
        kl, kl_error: the mean of KL(base || ours) over them, in nats, and its standard error.
        kl_p99, kl_largest: its 99th percentile and its largest value.
        same_top: the share of positions at which both find the same token likeliest.
        perplexity, base_perplexity: ours and the base's.
        text: what was read, in words.
    """

    positions: int
    kl: float
    kl_error: float
    kl_p99: float
    kl_largest: float
    same_top: float
    perplexity: float
    base_perplexity: float
    text: str

    def knows(self, vocab_size: int) -> bool:
        """Tells whether the base predicts text better than by guessing, as a trained model does."""
        return self.base_perplexity < vocab_size / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorQuality:
    """The cost of number formats to the vectors of texts.

    Attributes:
        texts: that were read.
        cosine, mean_cosine: of the vector of a text with that of the checkpoint's own numbers in
            float32: the least of all texts, and their mean.
    """

    texts: int
    cosine: float
    mean_cosine: float


def vectors_line(quality: VectorQuality | None) -> str:
    """The figures on one line."""
    if quality is None:
        return "unknown: compiled with --no-quality, or scores and no vectors"
    return (
        f"cosine {quality.cosine:.6f} or more with the checkpoint's own vectors, "
        f"{quality.mean_cosine:.6f} in the mean ({quality.texts} texts)"
    )


def quality_line(quality: Quality | None) -> str:
    """The figures on one line."""
    if quality is None:
        return "unknown: compiled with --no-quality, or before it was measured"
    return (
        f"mean KL {quality.kl:.2g} ± {quality.kl_error:.1g}, 99 % {quality.kl_p99:.2g}, "
        f"largest {quality.kl_largest:.2g}; same top token {quality.same_top:.1%}; "
        f"perplexity {quality.perplexity:.4g}, of the checkpoint {quality.base_perplexity:.4g} "
        f"({quality.positions} positions)"
    )
