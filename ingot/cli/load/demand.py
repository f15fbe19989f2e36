"""Draws requests to a server: prompts and moments, the same for the same seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ingot.errors import UsageError

Seconds = npt.NDArray[np.float64]

# Words that most tokenizers know as one token each.
WORDS = (
    "the of and to in that was he it his is with as had for at by on not be from but have you "
    "which are or her they an were there been one all we she when has who more if out so said "
    "what up its about into than them can only other time new some could these two may first then "
    "do any like my now over such our man me even most made after also did many before must"
).split()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAsk:
    """One request: a prompt as text or tokens, and how many tokens to make."""

    prompt: str | list[int]
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Distribution of requests. Lengths are in tokens, `rate` in requests a second.

    A `range_ratio` of 0.2 draws lengths between 0.8 and 1.2 times what is said. All prompts begin
    with the same `prefix_len` tokens, which come on top.
    """

    num_prompts: int
    input_len: int
    output_len: int
    prefix_len: int = 0
    range_ratio: float = 0.0
    rate: float = float("inf")
    burstiness: float = 1.0
    seed: int = 0
    vocabulary: tuple[int, ...] = field(default=(), repr=False)

    def asks(self) -> list[LoadAsk]:
        """The requests in their order. Without a vocabulary their prompts are words."""
        random = np.random.default_rng(self.seed)
        prefix = self._draw(random, self.prefix_len)
        inputs = self._lengths(random, self.input_len)
        outputs = self._lengths(random, self.output_len)
        return [
            self._ask(prefix, self._draw(random, length), output)
            for length, output in zip(inputs, outputs, strict=True)
        ]

    def arrivals(self) -> Seconds:
        """When each request comes, in seconds.

        Pauses are drawn from a gamma distribution of shape `burstiness`, so 1 makes it Poisson's,
        and are stretched so that they add up to what the rate says, as in vLLM.
        """
        if not np.isfinite(self.rate):
            return np.zeros(self.num_prompts)
        random = np.random.default_rng((self.seed, 1))
        pauses = random.gamma(self.burstiness, 1.0 / self.burstiness, self.num_prompts)
        moments = np.cumsum(pauses)
        if moments[-1] > 0:
            moments *= self.num_prompts / self.rate / moments[-1]
        return np.asarray(moments, np.float64)

    def _lengths(self, random: np.random.Generator, length: int) -> list[int]:
        low = max(1, int(np.floor(length * (1 - self.range_ratio))))
        high = max(low, int(np.ceil(length * (1 + self.range_ratio))))
        return [int(n) for n in random.integers(low, high, self.num_prompts, endpoint=True)]

    def _draw(self, random: np.random.Generator, length: int) -> list[Any]:
        among: Any = self.vocabulary or WORDS
        return [among[i] for i in random.integers(0, len(among), length)]

    def _ask(self, prefix: list[Any], rest: list[Any], output: int) -> LoadAsk:
        drawn = [*prefix, *rest]
        prompt = drawn if self.vocabulary else " ".join(drawn)
        return LoadAsk(prompt=prompt, prompt_tokens=len(drawn), output_tokens=output)


def sample_text(seed: int, words: int = 512) -> str:
    """A text whose tokens are those that prompts are drawn from."""
    random = np.random.default_rng(seed)
    return " ".join(WORDS[i] for i in random.integers(0, len(WORDS), words))


def parse_goodput(words: list[str]) -> dict[str, float]:
    """`ttft:200 tpot:50` as milliseconds by metric. Raises UsageError for anything else."""
    found = {}
    for word in words:
        name, colon, value = word.partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = -1.0
        if not colon or name not in ("ttft", "tpot", "e2el") or not limit >= 0:
            raise UsageError(
                f"--goodput is {word!r}",
                hint="Write a limit in milliseconds: ttft:200, tpot:50 or e2el:1000.",
            )
        found[name] = limit
    return found
