"""Models of whole texts in Python: `Embedder` for vectors, `Classifier` for scores."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from ingot.artifact.pooler import DOES, Pooler, Task
from ingot.artifact.programs import ENCODE, HIDDEN, TOKENS
from ingot.artifact.reader import Artifact
from ingot.errors import UsageError
from ingot.runtime.arrays import Float32
from ingot.runtime.embedding import RunsTexts
from ingot.runtime.encoder import TextEncoder
from ingot.runtime.progress import end_progress, show_progress
from ingot.runtime.scoring import (
    SparseVector,
    activated,
    finished,
    normalized,
    prompt_of,
    similarity,
    sparse,
)
from ingot.runtime.texts import Pair, Text, TextTokens
from ingot.runtime.tokenizer import Tokenizer
from ingot.runtime.tokenizer_files import TokenizerFiles

AT_ONCE = 256  # texts that are tokenized before they are run


class TextModel:
    """An open artifact that makes something of whole texts. Safe to use from several threads.

    Args:
        artifact: one that was compiled from a model of whole texts.
        truncate: leave out the end of texts that are too long, instead of refusing them.
        num_threads: the most threads of a step; None: one per usable processor.

    A context manager. Raises UsageError for an artifact of another task, and what `Artifact.open`
    does.
    """

    tasks: tuple[Task, ...]

    def __init__(
        self, artifact: Artifact, *, truncate: bool = False, num_threads: int | None = None
    ) -> None:
        self.artifact = artifact
        self.pooler = pooler_of(artifact, *self.tasks)
        self.tokenizer, self._texts, close = _opened(artifact, num_threads)
        # Runs at Python's exit, too, so that the threads of the kernels are always joined.
        self._close = weakref.finalize(self, close)
        self._tokens = TextTokens(
            self.tokenizer, self.pooler, longest=self._texts.longest, truncate=truncate
        )

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a text, special ones included."""
        return self._tokens.longest

    def rows(
        self,
        texts: Sequence[Text],
        prompt: str = "",
        at_once: int = AT_ONCE,
        tell: Callable[[int], None] | None = None,
    ) -> Float32:
        """What the model makes of each text behind a prompt, float32 [texts, columns], as it comes.

        `tell` is called with how many are done. Raises RequestError for a text that cannot be run.
        """
        found = []
        for begin in range(0, len(texts), max(at_once, 1)):
            part = texts[begin : begin + at_once]
            found.append(self._texts.run(self._tokens.encode(part, prompt)))
            if tell is not None:
                tell(begin + len(part))
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.empty((0, self.pooler.size), np.float32)

    def token_rows(
        self, texts: Sequence[Text], prompt: str = "", at_once: int = AT_ONCE
    ) -> list[Float32]:
        """As `rows`, but of each token of each text: float32 [tokens, columns] each."""
        found = []
        for begin in range(0, len(texts), max(at_once, 1)):
            part = self._tokens.encode(texts[begin : begin + at_once], prompt)
            found += self._texts.run_tokens(part)
        return found

    def close(self) -> None:
        """Frees everything; a second call does nothing."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Embedder(TextModel):
    """A model that makes vectors of texts; the methods are those of `SentenceTransformer`."""

    tasks = ("embed", "token_embed")

    def encode(
        self,
        sentences: str | Sequence[Text],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = AT_ONCE,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        **sentence_transformers: Any,
    ) -> Float32:
        """Vectors of texts: float32 [texts, size], or [size] of a single text.

        Their bits depend neither on the other texts nor on `batch_size`, which says how many are
        tokenized together.

        Args:
            sentences: a text, or a list of texts or of lists of tokens.
            prompt_name: which of the model's prompts to put in front; None: its default, if any.
            prompt: what to put in front instead.
            show_progress_bar: None: where stderr is a terminal and there are many texts.
            normalize_embeddings: make vectors 1 long, which many models do in any case.
            truncate_dim: so many of the first numbers, for models that were trained for it.
            sentence_transformers: its other arguments, at values that change nothing.

        Raises RequestError for a text that is too long, or no text, before any is run with it.
        """
        _check_harmless(sentence_transformers)
        pooler_of(self.artifact, "embed")
        single = isinstance(sentences, str)
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        before = prompt_of(self.pooler, prompt_name) if prompt is None else prompt
        shows = len(texts) > AT_ONCE if show_progress_bar is None else show_progress_bar
        vectors = self.rows(texts, before, batch_size, _telling(len(texts)) if shows else None)
        if shows:
            end_progress()
        vectors = finished(vectors, self.pooler, truncate_dim, normalize=normalize_embeddings)
        return vectors[0] if single else vectors

    def encode_sparse(
        self,
        sentences: str | Sequence[Text],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = AT_ONCE,
        max_active_dims: int | None = None,
    ) -> list[SparseVector]:
        """The numbers of each vector that are not 0, of a SPLADE model: tokens and their weights.

        `max_active_dims` keeps so many of the largest. Arguments and errors are those of `encode`;
        a model whose vectors have few zeros is a UsageError.
        """
        if not self.pooler.sparse:
            raise UsageError(
                f"{self.artifact.path} {DOES[self.pooler.task]}, which are not sparse",
                hint="This needs a SPLADE model. Ask for encode().",
            )
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        found = []
        for begin in range(0, len(texts), max(batch_size, 1)):
            part = texts[begin : begin + batch_size]
            found += sparse(self.encode(part, prompt_name, prompt), max_active_dims)
        return found

    def decode(self, vector: SparseVector, top_k: int | None = None) -> list[tuple[str, float]]:
        """Tokens and their weights, the largest first, as `SparseEncoder.decode` gives them."""
        order = np.argsort(-vector.values, kind="stable")[:top_k]
        return [
            (self.tokenizer.token(int(vector.indices[i])) or "", float(vector.values[i]))
            for i in order
        ]

    def encode_tokens(
        self,
        sentences: str | Sequence[Text],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = AT_ONCE,
        normalize_embeddings: bool = False,
    ) -> list[Float32]:
        """A vector for each token of each text, special ones included: float32 [tokens, size] each.

        They are those of `SentenceTransformer.encode(output_value="token_embeddings")`: what is
        pooled. A model that pools nothing, such as a ColBERT, gives its own. Arguments and errors
        are those of `encode`; an artifact that gives none is a UsageError.
        """
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        before = prompt_of(self.pooler, prompt_name) if prompt is None else prompt
        found = self.token_rows(texts, before, batch_size)
        is_final = self.pooler.task == "token_embed" and self.pooler.normalize
        return [normalized(each) for each in found] if normalize_embeddings or is_final else found

    def similarity(self, one: Float32, other: Float32) -> Float32:
        """How alike vectors are, [A, B] of [A, size] and [B, size], by the model's own measure."""
        return similarity(np.atleast_2d(one), np.atleast_2d(other), self.pooler)

    def get_sentence_embedding_dimension(self) -> int:
        """Numbers of a vector."""
        return self.pooler.size


class Classifier(TextModel):
    """A model that scores texts, pairs of them, or the tokens of texts, by labels."""

    tasks = ("classify", "token_classify")

    def scores(self, texts: Sequence[Text]) -> Float32:
        """Scores of each text or pair, float32 [texts, labels], before any activation."""
        pooler_of(self.artifact, "classify")
        return self.rows(list(texts))

    def classify(self, texts: str | Sequence[Text]) -> Float32:
        """Probabilities of the labels, float32 [texts, labels]."""
        return activated(self.scores([texts] if isinstance(texts, str) else texts), self.pooler)

    def classify_tokens(self, texts: str | Sequence[Text]) -> list[Float32]:
        """Probabilities of the labels for each token of each text, special ones included: float32
        [tokens, labels] each.

        `pooler.labels` names the labels. The tokens of a text are `tokenizer.encode(text)`. Raises
        UsageError for a model that scores whole texts.
        """
        pooler_of(self.artifact, "token_classify")
        found = self.token_rows([texts] if isinstance(texts, str) else list(texts))
        return [activated(each, self.pooler) for each in found]

    def predict(self, pairs: Sequence[Pair]) -> Float32:
        """How well the second text of each pair answers the first: [pairs], or [pairs, labels] of a
        model with several labels; as `CrossEncoder.predict` does."""
        found = activated(self.scores(pairs), self.pooler)
        return found[:, 0] if self.pooler.size == 1 else found

    def rank(
        self, query: str, documents: Sequence[str], top_k: int | None = None
    ) -> list[dict[str, Any]]:
        """Documents by how well they answer a query, the best first: their number and score, as
        `CrossEncoder.rank` gives them. Raises UsageError for a model with several labels."""
        if self.pooler.size != 1:
            raise UsageError(
                f"the model has {self.pooler.size} labels",
                hint="Documents are ranked by a model with one, a reranker.",
            )
        scores = self.predict([(query, document) for document in documents]).tolist()
        best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:top_k]
        return [{"corpus_id": i, "score": scores[i]} for i in best]


def _opened(
    artifact: Artifact, num_threads: int | None
) -> tuple[Tokenizer, RunsTexts, Callable[[], None]]:
    """What reads texts of an artifact, what runs them, and what frees everything."""
    if artifact.manifest.encodes:
        tokenizer = TokenizerFiles(artifact).tokenizer
        encoder = TextEncoder(artifact, num_threads=num_threads)
        return tokenizer, encoder, encoder.close
    from ingot.runtime.model import Model  # an engine, which takes longer to import than to open

    model = Model(artifact, num_threads=num_threads)
    assert model.texts is not None, "the task was checked"
    return model.get_tokenizer(), model.texts, model.close


def pooler_of(artifact: Artifact, *tasks: Task) -> Pooler:
    """What an artifact makes of whole texts. Raises UsageError where it is for something else."""
    pooler, programs = artifact.manifest.pooler, {*artifact.target.programs}
    reads = {ENCODE.name, TOKENS.name, HIDDEN.name} & programs
    if pooler is not None and pooler.task in tasks and reads:
        return pooler
    found = f"{artifact.path} {DOES[pooler.task]}" if pooler else f"{artifact.path} generates text"
    raise UsageError(found, hint=f"This needs a model that {DOES[tasks[0]]}.")


# Arguments of `SentenceTransformer.encode` that change nothing here, with the values they may have.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "output_value": ("sentence_embedding",),
    "precision": ("float32",),
    "convert_to_numpy": (True,),
    "convert_to_tensor": (False,),
    "device": (None, "cpu"),
    "pool": (None,),
    "chunk_size": (None,),
}


def _check_harmless(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if name not in HARMLESS or value not in HARMLESS[name]:
            allowed = " or ".join(map(repr, HARMLESS.get(name, ())))
            raise UsageError(
                f"{name} is {value!r:.80}",
                hint=f"Supported: {allowed}." if allowed else "There is no such argument.",
            )


def _telling(count: int) -> Callable[[int], None]:
    return lambda done: show_progress(f"{done}/{count} texts")
