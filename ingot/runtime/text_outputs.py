"""What is said of whole texts, under vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.runtime.arrays import Float32


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOutput:
    """A vector."""

    embedding: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationOutput:
    """Probabilities of the labels."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """How many labels there are."""
        return len(self.probs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringOutput:
    """How well two texts go together."""

    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingOutput:
    """What the model makes of a text, float32 [columns], or of its tokens, [tokens, columns]."""

    data: Float32


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequestOutput:
    """A text in tokens, and what is said of it."""

    request_id: str
    prompt_token_ids: list[int]
    finished: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequestOutput(TextRequestOutput):
    """A text and its vector."""

    outputs: EmbeddingOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationRequestOutput(TextRequestOutput):
    """A text and the probabilities of its labels."""

    outputs: ClassificationOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRequestOutput(TextRequestOutput):
    """A pair of texts and its score."""

    outputs: ScoringOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingRequestOutput(TextRequestOutput):
    """A text and what the model makes of it."""

    outputs: PoolingOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankOutput:
    """A document, its place among those that were given, and how well it answers the query."""

    index: int
    relevance_score: float
    document: str
