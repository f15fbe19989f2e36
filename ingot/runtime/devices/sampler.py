"""Draws the next tokens of the sequences of a step from their logits.

Every draw takes 53 random bits that depend only on the seed, the request and the position. The
other sequences of a batch, or a preemption, cannot shift it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np

from ingot.artifact.programs import LOGITS
from ingot.errors import IngotError, InternalError, RequestError, describe
from ingot.runtime.arrays import Float32
from ingot.runtime.devices.native_sampler import NativeSampler, SamplerKernels
from ingot.runtime.devices.numpy_sampler import NumpySampler, not_finite, spoiled
from ingot.runtime.executor import StepResult, StepWants, TokenScore
from ingot.runtime.output import Logprob
from ingot.runtime.params import LogitsProcessor
from ingot.runtime.sequence import SampledSequence, SamplingState


class Sampler:
    """Draws for one model. For one thread only.

    Args:
        kernels: of an open artifact; None draws the same tokens in numpy.
    """

    def __init__(self, vocab_size: int, kernels: SamplerKernels | None = None) -> None:
        self._backend = NumpySampler() if kernels is None else NativeSampler(kernels, vocab_size)

    def result(self, rows: Mapping[str, Float32], wants: StepWants) -> StepResult:
        """Draws tokens and scores, and keeps rows, by output; may overwrite the logits."""
        began = perf_counter()
        kept = wants.kept_of(rows)  # before drawing changes them
        if not (wants.scorings or wants.sequences):
            return StepResult([], [], kept, 0.0)
        logits = rows[LOGITS]
        scores = [
            self.score(
                logits[scoring.first_row : scoring.first_row + len(scoring.tokens)],
                scoring.tokens,
                scoring.count,
            )
            for scoring in wants.scorings
        ]
        drawn_from = logits if wants.rows == list(range(len(logits))) else logits[wants.rows]
        tokens = self.sample(drawn_from, wants.sequences) if wants.sequences else []
        return StepResult(tokens, scores, kept, perf_counter() - began)

    def sample(
        self, logits: Float32, sequences: Sequence[SampledSequence]
    ) -> list[TokenScore | IngotError]:
        """A token for each sequence, or the error that ends its request and no other.

        Row i of `logits` [R, V] belongs to sequence i. The logits may be overwritten.
        """
        states = [sequence.sampling for sequence in sequences]
        for sequence, state in zip(sequences, states, strict=True):
            state.advance(sequence.token_ids, sequence.num_prompt)
        risky = [i for i, state in enumerate(states) if state.may_spoil]
        if not risky:
            return self._backend.draw(logits, sequences, states)
        # Kernels know the maxima of the rows that they made, which processors are about to change.
        edited = logits.copy()
        errors = {i: _process(edited[i], sequences[i]) for i in risky}
        draws = self._backend.draw(edited, sequences, states)
        for i in risky:
            draws[i] = self._judge(logits[i], errors[i] or draws[i], states[i])
        return draws

    def score(
        self, logits: Float32, next_tokens: Sequence[int], count: int
    ) -> list[dict[int, Logprob]] | IngotError:
        """Log-probabilities of `next_tokens` [R] by logits [R, V], and of the `count` likeliest.

        -1 is all. An error where logits are not finite.
        """
        scores = self._backend.score(logits, next_tokens, [count] * len(next_tokens))
        errors = [score for score in scores if isinstance(score, IngotError)]
        return errors[0] if errors else scores  # type: ignore[return-value]

    def _judge(
        self, raw: Float32, draw: TokenScore | IngotError, state: SamplingState
    ) -> TokenScore | IngotError:
        """Checks the result of a row: the model answers for its own logits, the request for its
        edits.

        Log-probabilities are those of the model, not of what processors made of it.
        """
        if not np.isfinite(raw.max()):
            return not_finite()
        if isinstance(draw, InternalError):
            return spoiled()
        if isinstance(draw, IngotError) or state.params.logprobs is None:
            return draw
        score = self._backend.score(raw[None], [draw.token], [state.params.logprobs])[0]
        return score if isinstance(score, IngotError) else TokenScore(draw.token, score)


def _process(row: Float32, sequence: SampledSequence) -> IngotError | None:
    """Runs a user's functions over logits [V], in place; whatever they raise is returned."""
    prompt = sequence.token_ids[: sequence.num_prompt]
    generated = sequence.token_ids[sequence.num_prompt :]
    for place, processor in enumerate(sequence.params.logits_processors):
        name = f"logits_processors[{place}]"
        try:
            given = (prompt, generated) if _takes_prompt(processor) else (generated,)
            result = np.asarray(processor(*given, row))
        except BaseException as error:  # SystemExit, too, would end the engine's thread
            failed = RequestError(f"{name} raised {describe(error)}")
            failed.__cause__ = error
            return failed
        if result.shape != row.shape or result.dtype.kind != "f":
            return RequestError(
                f"{name} returned {result.dtype} {list(result.shape)}",
                hint=f"It must return float32 logits of shape {list(row.shape)}.",
            )
        row[:] = result
    return None


def _takes_prompt(processor: LogitsProcessor) -> bool:
    try:
        return len(inspect.signature(processor).parameters) >= 3
    except (TypeError, ValueError):  # a builtin without a signature
        return False
