"""`TextTasks`: what `LLM` does with whole texts, in vLLM's shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import numpy as np

from ingot.artifact.pooler import DOES, OF_TOKENS, Pooler, Task
from ingot.artifact.programs import HIDDEN
from ingot.errors import RequestError, UsageError
from ingot.runtime.arrays import Float32
from ingot.runtime.embedding import PooledRows, Pooling, check_pooling
from ingot.runtime.encoder import EncodedText
from ingot.runtime.model import Model
from ingot.runtime.prompts import Prompt, list_of_prompts, prompt_parts
from ingot.runtime.scoring import activated, answered, finished, normalized, scores_of, task_of
from ingot.runtime.text_outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RerankOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from ingot.runtime.vllm_arguments import CALLS, choose

AT_ONCE = 256  # texts that are read before the progress is told
Pairs = Sequence[tuple[str, str]]


class TextTasks(Model):
    """Vectors, scores and labels of whole texts, by models that were made for them."""

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        pooling_params: Any = None,
        use_tqdm: bool = True,
        **vllm: Any,
    ) -> list[EmbeddingRequestOutput]:
        """A vector for every prompt; no token is drawn.

        Prompts are those of `generate`. A model that generates gives its last hidden states:
        `pooling` takes that of the "last" token, of the "first", the "mean" of all, or another of
        `embedding.Pooling`; None is what the model was made for, or else "last". `normalize` makes
        the vector 1 long. Of `pooling_params`, a dict or an object, `dimensions` cuts it. The bits
        of a vector depend on neither the other prompts nor what else the model does. `vllm` is as
        in `generate`.

        Raises UsageError for an artifact that gives no vectors, and RequestError, with nothing run,
        if any prompt cannot be served.
        """
        _check_call(self.embed, vllm)
        texts = self._encoded(prompts)
        rows, pooler = self._vectors(texts, pooling, progress=use_tqdm)
        cut = _param(pooling_params, "dimensions")
        if cut is not None and pooler is None:
            raise RequestError(f"dimensions is {cut!r:.40}", hint="This model was not made for it.")
        if pooler is not None:
            rows = finished(rows, pooler, cut, normalize=normalize)
        elif normalize:
            rows = normalized(rows)
        return [
            EmbeddingRequestOutput(
                request_id=str(i),
                prompt_token_ids=[*text.tokens],
                outputs=EmbeddingOutput(embedding=row),
            )
            for i, (text, row) in enumerate(zip(texts, rows.tolist(), strict=True))
        ]

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_task: str | None = None,
        use_tqdm: bool = True,
        **vllm: Any,
    ) -> list[PoolingRequestOutput]:
        """What the model makes of every prompt, or of each of its tokens: a vector, or
        probabilities of labels.

        `pooling_task` is "embed", "token_embed", "classify" or "token_classify". The tokens of a
        text are `get_tokenizer().encode(text)`. Raises as `embed` does.
        """
        _check_call(self.encode, vllm)
        pooler = self._pooler(*DOES)
        task = task_of(pooler, pooling_task)
        texts = self._encoded(prompts)
        if task in OF_TOKENS:
            rows = [answered(each, pooler) for each in self._token_rows(texts)]
        else:
            rows = [*answered(self._rows(texts), pooler)]
        return [
            PoolingRequestOutput(
                request_id=str(i), prompt_token_ids=[*text.tokens], outputs=PoolingOutput(data=row)
            )
            for i, (text, row) in enumerate(zip(texts, rows, strict=True))
        ]

    def classify(
        self, prompts: Prompt | Sequence[Prompt], *, use_tqdm: bool = True, **vllm: Any
    ) -> list[ClassificationRequestOutput]:
        """Probabilities of the labels of every prompt. Raises as `embed` does."""
        _check_call(self.classify, vllm)
        pooler = self._pooler("classify")
        texts = self._encoded(prompts)
        rows = activated(self._rows(texts), pooler).tolist()
        return [
            ClassificationRequestOutput(
                request_id=str(i),
                prompt_token_ids=[*text.tokens],
                outputs=ClassificationOutput(probs=row),
            )
            for i, (text, row) in enumerate(zip(texts, rows, strict=True))
        ]

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        *,
        use_tqdm: bool = True,
        **vllm: Any,
    ) -> list[ScoringRequestOutput]:
        """How well texts go together: a single first text with each of the second ones, or pair by
        pair. A model that makes vectors compares those. Raises as `embed` does."""
        _check_call(self.score, vllm)
        first, second = ([d] if isinstance(d, str) else [*d] for d in (data_1, data_2))
        first = first * len(second) if len(first) == 1 else first
        if len(first) != len(second) or not first:
            raise RequestError(
                f"{len(first)} first texts for {len(second)} second ones",
                hint="Give one first text, or as many as second ones.",
            )
        scores, tokens = self._scores([*zip(first, second, strict=True)])
        return [
            ScoringRequestOutput(
                request_id=str(i), prompt_token_ids=ids, outputs=ScoringOutput(score=score)
            )
            for i, (ids, score) in enumerate(zip(tokens, scores.tolist(), strict=True))
        ]

    def rerank(
        self, query: str, documents: Sequence[str], *, top_n: int | None = None
    ) -> list[RerankOutput]:
        """Documents by how well they answer a query, the best first. Raises as `embed` does."""
        if not documents:
            return []
        scores = self._scores([(query, document) for document in documents])[0].tolist()
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:top_n]
        return [
            RerankOutput(index=i, relevance_score=scores[i], document=documents[i]) for i in order
        ]

    def _pooler(self, *tasks: Task) -> Pooler:
        """What the model makes of texts. Raises UsageError where that is none of these."""
        pooler = self.artifact.manifest.pooler
        if pooler is None or pooler.task not in tasks or self.texts is None:
            does = "generates text" if pooler is None else f"was made to {pooler.task}"
            raise UsageError(
                f"{self.artifact.path} {does}", hint=f"This needs a model made to {tasks[0]}."
            )
        return pooler

    def _encoded(self, prompts: Prompt | Sequence[Prompt]) -> list[EncodedText]:
        """The tokens of prompts. Raises RequestError for one that cannot be served."""
        found = []
        for text, ids, _ in map(prompt_parts, list_of_prompts(prompts)):
            tokens = self.get_tokenizer().encode(text or "") if ids is None else ids
            found.append(EncodedText(tokens))
            self._check(found[-1])
        return found

    def _check(self, text: EncodedText) -> None:
        if self._encoder is not None:
            self._encoder.check(text)
        else:
            self._engine.check([*text.tokens])

    def _vectors(
        self, texts: Sequence[EncodedText], pooling: Pooling | None, *, progress: bool
    ) -> tuple[Float32, Pooler | None]:
        """Rows of texts, and what the model says of them; by any model with hidden states."""
        pooler = self.artifact.manifest.pooler
        if self._encoder is not None:
            pooler = self._pooler("embed")
            if pooling is not None and (pooling,) != pooler.pooling:
                raise UsageError(
                    f"pooling is {pooling!r:.80}",
                    hint=f"The model was made for {', '.join(pooler.pooling)}; leave it out.",
                )
            return self._rows(texts), pooler
        usual = pooler.pooling if pooler else ("last",)
        ways = usual if pooling is None else (check_pooling(pooling),)
        pools = [PooledRows(ways, len(text.tokens)) for text in texts]
        tokens = [[*text.tokens] for text in texts]
        self.run_pools(HIDDEN.name, tokens, pools, progress=progress)
        rows = [pool.vector(normalize=False) for pool in pools]
        return np.stack(rows) if rows else np.empty((0, 0), np.float32), pooler

    def _rows(self, texts: Sequence[EncodedText]) -> Float32:
        assert self.texts is not None, "the task was checked"
        parts = [self.texts.run(texts[i : i + AT_ONCE]) for i in range(0, len(texts), AT_ONCE)]
        return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)

    def _token_rows(self, texts: Sequence[EncodedText]) -> list[Float32]:
        assert self.texts is not None, "the task was checked"
        parts = (texts[i : i + AT_ONCE] for i in range(0, len(texts), AT_ONCE))
        return [rows for part in parts for rows in self.texts.run_tokens(part)]

    def _scores(self, pairs: Pairs) -> tuple[Float32, list[list[int]]]:
        """Scores of pairs, and the tokens of each."""
        pooler = self._pooler("classify", "embed", "token_embed")
        tokenizer = self.get_tokenizer()
        if pooler.task == "classify":
            if pooler.size != 1:
                raise UsageError(
                    f"the model has {pooler.size} labels, and no one score", hint="Ask classify()."
                )
            texts = [EncodedText(*each) for each in tokenizer.encode_texts(pairs)]
            for text in texts:
                self._check(text)
            return activated(self._rows(texts), pooler)[:, 0], [[*text.tokens] for text in texts]
        words = [*dict.fromkeys(text for pair in pairs for text in pair)]
        read = self._encoded(words)
        place = {word: i for i, word in enumerate(words)}
        places = [(place[a], place[b]) for a, b in pairs]
        tokens = [[*read[a].tokens, *read[b].tokens] for a, b in places]
        rows = self._token_rows(read) if pooler.task == "token_embed" else self._rows(read)
        return scores_of(rows, places, pooler), tokens


def _param(params: Any, name: str) -> Any:
    """A field of a dict or an object; None of neither."""
    return params.get(name) if isinstance(params, Mapping) else getattr(params, name, None)


def _check_call(method: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raises UsageError for other arguments of a call than vLLM's that change nothing."""
    choose(given, CALLS, known=signature(method).parameters if given else ())
