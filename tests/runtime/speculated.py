"""Requests of every kind, and drafts of any quality, for tests of speculation."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from ingot.runtime import speculation
from ingot.runtime.config import EngineConfig
from ingot.runtime.llm import LLM
from ingot.runtime.metrics import EngineCounters
from ingot.runtime.output import RequestOutput
from ingot.runtime.params import SamplingParams
from ingot.runtime.sequence import Sequence as Running
from ingot.runtime.speculation import Pace, Speculation

SPECULATIVE = EngineConfig(speculative="ngram")
Asked = tuple[list[int], SamplingParams, int]
Wish = dict[str, Any]


def falling(generated, logits):
    """A logits processor that depends on every token before."""
    return logits - np.float32(0.25) * np.float32(sum(generated) % 7) * np.sign(logits)


# What a request may ask for beside its temperature and length; several of them at once.
WISHES: tuple[Wish, ...] = (
    {},
    {"repetition_penalty": 1.4},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"logit_bias": {5: 6.0, 7: -100.0}},
    {"bad_words": ["e", "the"]},
    {"stop": ["a", "the"]},
    {"stop": ["o"], "min_tokens": 4, "include_stop_str_in_output": True},
    {"stop_token_ids": list(range(20, 40)), "min_tokens": 3},
    {"logprobs": 0},
    {"logprobs": 3, "prompt_logprobs": 2},
    {"n": 3, "temperature": 0.8},
    {"top_k": 5, "top_p": 0.9, "min_p": 0.01},
    {"logits_processors": [falling]},
    {"allowed_token_ids": list(range(3, 90))},
    {"ignore_eos": True},
)


NO_TEXT = tuple(
    {**wish, "detokenize": False} for wish in WISHES if not wish.keys() & {"stop", "bad_words"}
)


def requests(
    seed: int, count: int, vocab_size: int, most: int, wishes: Sequence[Wish] = WISHES
) -> list[Asked]:
    """Requests of at most `most` tokens, many of which begin alike. Each has a seed of its own."""
    rng = random.Random(seed)
    stems = [[rng.randrange(vocab_size) for _ in range(most)] for _ in range(4)]
    found = []
    for number in range(count):
        length = rng.randrange(1, most - 2)
        prompt = rng.choice(stems)[: rng.randrange(length + 1)]
        prompt = prompt + [rng.randrange(vocab_size) for _ in range(length - len(prompt))]
        chosen = rng.sample(wishes, rng.choice([1, 1, 1, 2, 3]))
        options = {name: value for wish in chosen for name, value in wish.items()}
        least = options.get("min_tokens", 1)
        params = SamplingParams(
            max_tokens=rng.randrange(least, max(least, most - length) + 1),
            seed=number,
            **{"temperature": rng.choice([0, 0, 0.6, 1.0]), **options},
        )
        found.append((prompt, params, rng.choice([0, 0, 0, -1, 1])))
    return found


class Truth:
    """Drafts of what is known to come, with so many wrong tokens among them, and beyond the end."""

    def __init__(self, outputs: list[RequestOutput], wrong: float, vocab_size: int) -> None:
        self._known = {
            (number, completion.index): output.prompt_token_ids + completion.token_ids
            for number, output in enumerate(outputs)
            for completion in output.outputs
        }
        self._rng, self._wrong, self._vocab_size = random.Random(0), wrong, vocab_size

    def __call__(self, sequences: list[Running], room: int) -> list[list[int]]:
        drafts = []
        for sequence in sequences:
            draft = self._draft(sequence)[:room]
            room -= len(draft)
            drafts.append(draft)
        return drafts

    def _draft(self, sequence: Running) -> list[int]:
        rng, known = self._rng, self._known[sequence.seed, sequence.index]
        coming = chain(
            known[sequence.length :], iter(lambda: rng.randrange(self._vocab_size), None)
        )
        return [
            rng.randrange(self._vocab_size) if rng.random() < self._wrong else token
            for token, _ in zip(coming, range(rng.randrange(8)), strict=False)
        ]


@contextmanager
def always() -> Iterator[None]:
    """Drafts are made wherever there is something to guess, whatever they cost."""
    with (
        patch.object(Pace, "is_known", True),
        patch.object(Pace, "length", lambda self, chance, most: most),
        patch.object(Speculation, "_means", lambda self, pace: 10**6),
        patch.object(speculation, "LONGEST_REST", 0),
    ):
        yield


def outcome(output: RequestOutput) -> tuple[object, ...]:
    """All that a request asked for, to the bit."""
    completions = [
        (c.token_ids, c.text, repr(c.logprobs), repr(c.cumulative_logprob), c.finish_reason,
         c.stop_reason)
        for c in output.outputs
    ]  # fmt: skip
    metrics = output.metrics
    assert metrics is not None
    return completions, repr(output.prompt_logprobs), metrics.num_generated_tokens


def run(
    path: Path, asked: list[Asked], **options: Any
) -> tuple[list[RequestOutput], EngineCounters]:
    """All requests in company; every page is free again afterwards."""
    prompts, params, priorities = (list(column) for column in zip(*asked, strict=True))
    with LLM(path, **options) as llm:
        outputs = llm.generate(prompts, params, priority=priorities)
        counters = llm.counters()
        llm._engine.pages.check()
    assert counters.num_free_pages == counters.num_pages
    return outputs, counters
