"""What an artifact makes of a whole text, as its runtime and those who ask need to know it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Task = Literal["embed", "token_embed", "classify", "token_classify"]
DOES: Mapping[Task, str] = {
    "embed": "makes vectors of texts",
    "token_embed": "makes vectors of the tokens of texts",
    "classify": "scores texts",
    "token_classify": "scores the tokens of texts",
}
OF_TOKENS: frozenset[Task] = frozenset({"token_embed", "token_classify"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooler:
    """Vectors or scores of whole texts.

    Attributes:
        task: a text becomes a vector, or gets a score for each label; or each of its tokens does.
        pooling: how the rows of a text became one; what several ways make lies side by side. None
            of a model whose tokens keep theirs.
        include_prompt: rows of a prompt are pooled with those of the text behind it.
        guessed: no file of the model says how.
        size: numbers of a vector, or labels. tokens: numbers of a token's row; 0 where the
            artifact gives none.
        sparse: a vector has a weight for each token of the vocabulary, of which most are 0.
        normalize: vectors are made 1 long.
        dimensions: the sizes that a vector may be cut to (Matryoshka); empty: any, where `nested`.
        nested: the model was trained so that the first numbers of a vector are one, too.
        max_tokens: the longest text that the model was made for, its special tokens included.
        prompts: texts to put in front of others, by name; default_prompt: which one if none is
            asked for, or "".
        similarity: how vectors are compared: "cosine", "dot", "euclidean" or "manhattan"; those of
            tokens by "maxsim" or "meanmaxsim".
        types: how many sorts of tokens there are: where there are two, those of the second text of
            a pair are of another. type_stride: what positions of the second grow by.
        activation: what makes probabilities of scores: "softmax", "sigmoid", or "none" where they
            are left as they are.
        labels: their names; none of a model that embeds.
    """

    task: Task
    pooling: tuple[str, ...]
    include_prompt: bool = True
    guessed: bool = False
    size: int
    tokens: int = 0
    sparse: bool = False
    normalize: bool = False
    dimensions: tuple[int, ...] = ()
    nested: bool = False
    max_tokens: int
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    similarity: str = "cosine"
    types: int = 1
    type_stride: int = 0
    activation: Literal["none", "sigmoid", "softmax"] = "none"
    labels: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        """Describes it in a line."""
        if self.labels:
            return scores_in_words(self.size, self.pooling)
        if self.task == "token_embed":
            made = f"a vector of {self.size} for each token"
        else:
            what = "weights of {} tokens" if self.sparse else "vectors of {}"
            made = f"{what.format(self.size)}, from {pooled_in_words(self.pooling)}"
        made += "" if self.include_prompt else ", without those of a prompt"
        made += ", normalised" if self.normalize else ""
        made += f"; of {self.tokens} for each token" if self.tokens and self.pooling else ""
        return made + (" (guessed: no modules.json says so)" if self.guessed else "")


POOLED = {
    "first": "the first token",
    "max": "the largest of all tokens",
    "mean": "the mean of all tokens",
    "mean_sqrt": "the sum of all tokens by the root of their number",
    "weighted_mean": "the mean of all tokens, in which token n counts n times",
    "sum": "the sum of all tokens",
    "last": "the last token",
}


def scores_in_words(labels: int, pooling: Sequence[str]) -> str:
    """Describes what gets scores of so many labels."""
    of = f"from {pooled_in_words(pooling)}" if pooling else "for each token"
    return f"scores of {labels} labels {of}"


def pooled_in_words(pooling: Iterable[str]) -> str:
    """Describes how the rows of a text became one."""
    return " and ".join(POOLED[how] for how in pooling)
