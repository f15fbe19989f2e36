"""Golden outputs: what the float32 reference says on a handful of prompts.

For every position of every prompt the file has the most likely tokens with their log-probabilities,
and the log-probability of the token that follows. Prompts are teacher-forced, so that one wrong
token does not hide the ones after it. `ingot verify` replays them with the compiled code.

How far a number format may be off is measured, see `tolerance`; docs/numerics.md derives it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
import torch
from torch.fx import GraphModule

from ingot.artifact.golden import (
    GOLDEN_FORMAT,
    Golden,
    GoldenModel,
    GoldenPosition,
    GoldenPrompt,
    Tolerance,
)
from ingot.artifact.golden_error import GoldenDifference, difference
from ingot.compiler.reference import ReadParameter
from ingot.compiler.rounding import Rounded, rounded_logits
from ingot.errors import CompileError

TOP = 8  # tokens kept a position; the margin between the first two tells ties from faults

# What is allowed, as a multiple of the noise that rounding makes on these very prompts. Half of
# three is the one multiple of the mean that no error of three times the noise passes, whatever its
# sign, and that every format passes: the triangle inequality. Divergence grows with the square.
MEAN, LARGEST = 1.5, 3.0
KL = MEAN**2

# The largest |error| of a log-probability that an artifact may have, against a reference with its
# own weights. A model that needs more has outliers, and is not worth shipping in that format.
LIMIT = {"float32": 2e-3, "bfloat16": 0.25, "float16": 0.04}
QUANTIZED_LIMIT = 0.5

# How much log-probabilities of the reference differ between hosts, which add in another order.
BETWEEN_HOSTS = 5e-4

# The largest window that a compile exercises, in tokens. The reference has no cache, and would take
# minutes over longer prompts.
MAX_WINDOW = 1024
MIN_POSITIONS = 48  # a mean over fewer is not steady

TEXT = (
    "Shall I compare thee to a summer's day? Thou art more lovely and more temperate: "
    "Rough winds do shake the darling buds of May, And summer's lease hath all too short a date; "
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A sequence for the reference: its tokens, of which so many were given. See `GoldenPrompt`."""

    tokens: Sequence[int]
    given: int
    sampled: bool = False
    text: str | None = None
    pieces: Sequence[str] = ()


def golden_prompts(
    encoded_text: Sequence[int], *, page_size: int, max_model_len: int, windows: Sequence[int]
) -> list[list[int]]:
    """Prompts that cross every boundary of the runtime, as token ids.

    Prompts of one token, of a few, of exactly a page, and of more than two pages. If attention has
    windows of at most MAX_WINDOW tokens, also one that is longer than the widest of these. Where
    all of them are short, there are more of the longest, from other places of the text.
    """
    window = max((w for w in windows if w <= MAX_WINDOW), default=0)
    lengths = {1, 5, page_size, 2 * page_size + 3}
    if window:
        lengths.add(window + page_size + 1)
    fitting = sorted({min(length, max_model_len) for length in lengths})
    longest = fitting[-1]
    more = max(0, -(-(MIN_POSITIONS - sum(fitting)) // longest))
    places = [(0, length) for length in fitting] + [
        (n * longest, longest) for n in range(1, more + 1)
    ]
    return [
        [encoded_text[i % len(encoded_text)] for i in range(start, start + length)]
        for start, length in places
    ]


def golden_outputs(
    gm: GraphModule,
    read: ReadParameter,
    prompts: Sequence[Prompt],
    model: GoldenModel,
    formats: Mapping[str, Sequence[Rounded]],
    *,
    limit: float = inf,
) -> Golden:
    """What the reference says on these prompts, and what each number format may be off by.

    Args:
        read: gives the weights; for goldens of an artifact those that it stores, in integers where
            they are stored so.
        formats: of each number format the ways in which targets round.
        limit: the largest |error| that is allowed to any of them.

    Raises:
        CompileError: the outputs are not finite.
    """
    ways = [way for each in formats.values() for way in each]
    exact, *rounded = rounded_logits(gm, read, [prompt.tokens for prompt in prompts], ways)
    if not all(bool(rows.isfinite().all()) for rows in exact):
        raise CompileError(
            "the outputs of the float32 reference are not finite",
            hint="Some weights are probably too large. Check the model in float32.",
        )
    found = [_prompt(*each) for each in zip(prompts, exact, strict=True)]
    noises = iter([difference(found, [rows.numpy() for rows in each]) for each in rounded])
    tolerances = {
        name: loosest([tolerance(next(noises), limit) for _ in each])
        for name, each in formats.items()
    }
    return Golden(GOLDEN_FORMAT, model, tolerances, found)


def limit_of(name: str) -> float:
    """The largest |error| of a log-probability that an artifact of a number format may have."""
    return LIMIT.get(name, QUANTIZED_LIMIT)


def tolerance(noise: GoldenDifference, limit: float) -> Tolerance:
    """What a number format is allowed whose own rounding makes this noise."""
    if not isfinite(noise.mean + noise.largest):  # the replay will say so
        most = min(limit, QUANTIZED_LIMIT)
        return Tolerance(most, most, most, None if noise.kl is None else most)
    return Tolerance(
        noise=_short(noise.mean),
        mean=_short(MEAN * noise.mean),
        largest=min(limit, _short(LARGEST * noise.largest)),
        kl=None if noise.kl is None else _short(KL * noise.kl),
    )


def loosest(all_of_them: Sequence[Tolerance]) -> Tolerance:
    """The largest of each."""
    kls = [each.kl for each in all_of_them if each.kl is not None]
    return Tolerance(
        noise=max(each.noise for each in all_of_them),
        mean=max(each.mean for each in all_of_them),
        largest=max(each.largest for each in all_of_them),
        kl=max(kls, default=None),
    )


def outputs_agree(one: Golden, other: Golden) -> bool:
    """Whether two goldens are of the same model and prompts, on whatever hosts they were made."""
    values, others = ([*_values(each)] for each in (one, other))
    return (
        [prompt.tokens for prompt in one.prompts] == [prompt.tokens for prompt in other.prompts]
        and len(values) == len(others)
        and np.allclose(values, others, rtol=0, atol=BETWEEN_HOSTS)
    )


def _values(golden: Golden) -> Iterator[float]:
    """All log-probabilities, in order."""
    for prompt in golden.prompts:
        for position in prompt.positions:
            yield from (value for _, value in position.top)
            yield position.next or 0.0


def _prompt(prompt: Prompt, logits: torch.Tensor) -> GoldenPrompt:
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    top = logprobs.topk(min(TOP, logits.shape[-1]), dim=-1)
    following = [*prompt.tokens[1:], None]
    positions = [
        GoldenPosition(
            token=prompt.tokens[i],
            top=[(token, _rounded(p)) for token, p in zip(ids, values, strict=True)],
            next=None if following[i] is None else _rounded(logprobs[i, following[i]]),
            margin=_rounded(values[0] - values[min(1, len(values) - 1)]),
            piece=prompt.pieces[i] if prompt.pieces else "",
        )
        for i, (ids, values) in enumerate(
            zip(top.indices.tolist(), top.values.tolist(), strict=True)
        )
    ]
    return GoldenPrompt(positions, prompt.given, prompt.sampled, prompt.text)


def _rounded(value: float | torch.Tensor) -> float:
    return round(float(value), 6) + 0.0  # no negative zero


def _short(value: float) -> float:
    """Three digits: more would differ from host to host."""
    return float(f"{value:.3g}")
