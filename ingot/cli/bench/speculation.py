"""Decoding with and without speculation, in turns, beside each other.

What speculation gains depends on the text, and weights that are random, as those of a benchmark may
be, write nothing that anyone would. So the answers are given: a logits processor makes the next
token of an answer the likeliest one, in both turns. Steps are those of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from ingot.errors import InternalError
from ingot.runtime.config import EngineConfig
from ingot.runtime.devices.cpu import CpuExecutor
from ingot.runtime.engine import Engine
from ingot.runtime.params import SamplingParams

ANSWER = 128  # tokens
REPLACED = 1 / 12  # of the tokens that an answer has from its prompt
Request = tuple[list[int], SamplingParams]


@dataclass(frozen=True, slots=True)
class BenchText:
    """Requests that run at once, under a name."""

    name: str
    requests: list[Request]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTurn:
    """Result of a turn: tokens a second after the first ones, and what became of drafts."""

    tokens_per_second: float
    num_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationTurns:
    """A text in turns without speculation, and in as many with it. `tokens` are all answers'."""

    text: BenchText
    tokens: int
    plain: list[BenchTurn]
    drafted: list[BenchTurn]

    @property
    def ratio(self) -> float:
        """Speedup by speculation, the median of the rounds."""
        pairs = zip(self.plain, self.drafted, strict=True)
        return median(b.tokens_per_second / a.tokens_per_second for a, b in pairs)

    @property
    def plain_rate(self) -> float:
        return median(turn.tokens_per_second for turn in self.plain)

    @property
    def drafted_rate(self) -> float:
        return median(turn.tokens_per_second for turn in self.drafted)

    @property
    def num_draft_tokens(self) -> int:
        return sum(turn.num_draft_tokens for turn in self.drafted)

    @property
    def acceptance_rate(self) -> float | None:
        """The part of the drafted tokens that were accepted; None where none was drafted."""
        accepted = sum(turn.num_accepted_tokens for turn in self.drafted)
        return accepted / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def tokens_per_step(self) -> float:
        """Tokens of a sequence in a step with speculation; 1 if no draft is right."""
        steps = median(turn.num_steps for turn in self.drafted)
        return self.tokens / len(self.text.requests) / steps


class SpeculationRunner:
    """Runs texts in an engine of its own. The executor stays open.

    Raises UsageError where no step of the executor takes drafts.
    """

    def __init__(self, executor: CpuExecutor, speculative: EngineConfig, rounds: int) -> None:
        self._plain, self._speculative = EngineConfig(), speculative
        self._rounds = rounds
        longest = executor.limits.max_model_len
        self._engine = Engine(executor, max_model_len=longest, config=speculative)

    def run(self, text: BenchText) -> SpeculationTurns:
        """Runs the same requests in all turns. Raises InternalError if outputs are not equal."""
        turns: dict[EngineConfig, list[BenchTurn]] = {self._plain: [], self._speculative: []}
        # What is prefilled here, the turns find in the cache of prefixes.
        self._turn(self._plain, [(p, replace(params, max_tokens=4)) for p, params in text.requests])
        answers = []
        for config in [*turns] * self._rounds:
            turn, answer = self._turn(config, text.requests)
            turns[config].append(turn)
            answers.append(answer)
        if any(answer != answers[0] for answer in answers):
            raise InternalError(f"speculation has changed an output of {text.name}")
        return SpeculationTurns(
            text=text,
            tokens=sum(map(len, answers[0])),
            plain=turns[self._plain],
            drafted=turns[self._speculative],
        )

    def _turn(
        self, config: EngineConfig, requests: Sequence[Request]
    ) -> tuple[BenchTurn, list[list[int]]]:
        engine = self._engine
        engine.config = config
        before = engine.counters()
        sequences = [engine.add(prompt, params) for prompt, params in requests]
        while engine.has_unfinished:
            engine.step()
        for sequence in sequences:
            if sequence.error is not None:
                raise sequence.error
        after, answers = engine.counters(), [sequence.generated_ids for sequence in sequences]
        began = max(sequence.times.first_token for sequence in sequences)
        seconds = max(sequence.times.last_token for sequence in sequences) - began
        return BenchTurn(
            tokens_per_second=sum(len(answer) - 1 for answer in answers) / seconds,
            num_steps=after.num_steps - before.num_steps,
            num_draft_tokens=after.num_draft_tokens - before.num_draft_tokens,
            num_accepted_tokens=after.num_accepted_tokens - before.num_accepted_tokens,
        ), answers


def steered(answer: list[int]) -> SamplingParams:
    """Parameters that make a model give this answer."""

    def steer(generated: list[int], logits: Any) -> Any:
        logits[answer[len(generated)]] = 1e4
        return logits

    return SamplingParams(
        temperature=0, max_tokens=len(answer), ignore_eos=True, detokenize=False,
        logits_processors=[steer],
    )  # fmt: skip


def texts(vocab_size: int, prompt_tokens: int, sequences: int) -> Iterator[BenchText]:
    """Answers that repeat their prompt as an edit of it does, and others that go on otherwise."""
    many = f", {sequences} at once" if sequences > 1 else ""
    for name, kept in (("repetitive", 1 - REPLACED), ("other", 0.0)):
        random = np.random.default_rng(0)
        requests: list[Request] = []
        for _ in range(sequences):
            prompt, new = (_words(random, vocab_size, n) for n in (prompt_tokens, ANSWER))
            old = np.resize(prompt, ANSWER)
            answer = np.where(random.random(ANSWER) < kept, old, new)
            requests.append((prompt.tolist(), steered(answer.tolist())))
        yield BenchText(name + many, requests)


def _words(random: np.random.Generator, vocab_size: int, count: int) -> Any:
    """Tokens as frequent as words are: the n-th in proportion to 1 / n. So pairs come again by
    chance, and what follows them misleads."""
    return (vocab_size ** random.random(count)).astype(np.int64) - 1
