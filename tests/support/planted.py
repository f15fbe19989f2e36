"""A model whose logits are off by so many times the noise of its number format."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from ingot.artifact.golden import Golden
from ingot.artifact.golden_error import logprobs_of
from ingot.artifact.reader import Artifact
from ingot.runtime.arrays import Float32
from ingot.runtime.llm import LLM
from ingot.runtime.tokenizer import Tokenizer


class Planted:
    """Stands for an `LLM` in `verify`; its logits have a random error besides their own.

    The mean |error| that this adds to the log-probabilities that goldens list is `error`. It is the
    same whichever way logits are computed, so that no comparison of ways can find it.
    """

    def __init__(self, llm: LLM, golden: Golden, error: float) -> None:
        self.artifact: Artifact = llm.artifact
        self._llm, self._scale = llm, 0.0
        small = error / 10
        self._scale = small and error * small / self._added(golden, small)

    def get_tokenizer(self) -> Tokenizer:
        return self._llm.get_tokenizer()

    def logits(self, tokens: Sequence[int], *, first: int = 0) -> Float32:
        return self._off(tokens, self._llm.logits(tokens), self._scale)[first:]

    def batch_logits(
        self, prompts: Sequence[Sequence[int]], *, chunk_tokens: int | None, first: Sequence[int]
    ) -> list[Float32]:
        found = self._llm.batch_logits(prompts, chunk_tokens=chunk_tokens)
        return [
            self._off(prompt, rows, self._scale)[start:]
            for prompt, rows, start in zip(prompts, found, first, strict=True)
        ]

    @staticmethod
    def _off(tokens: Sequence[int], logits: Float32, scale: float) -> Float32:
        rng = np.random.default_rng(zlib.crc32(bytes(str(list(tokens)), "ascii")))
        return logits + np.float32(scale) * rng.standard_normal(logits.shape, np.float32)

    def _added(self, golden: Golden, scale: float) -> float:
        """The mean |error| that an error of that scale adds."""
        errors: list[float] = []
        for prompt in golden.prompts:
            honest = self._llm.logits(prompt.tokens)
            wrong = self._off(prompt.tokens, honest, scale)
            for t, position in enumerate(prompt.scored, prompt.first):
                listed = [token for token, _ in position.top] + prompt.tokens[t + 1 : t + 2]
                both = (logprobs_of(rows[t], listed) for rows in (honest, wrong))
                errors += [abs(a - b) for a, b in zip(*both, strict=True)]
        return float(np.mean(errors))
