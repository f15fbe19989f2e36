"""Golden outputs: what the float32 reference says on a handful of prompts.

For every position of every prompt the file has the most likely tokens with their log-probabilities,
and the log-probability of the token that follows. Prompts are teacher-forced, so that one wrong
token does not hide the ones after it. `ingot verify` replays them with the compiled code.

How far a number format may be off is measured, see `tolerance`; docs/numerics.md derives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import islice
from math import isfinite

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
DRAWS = 4  # of the noise; on real models one of them is up to a third off

# What is allowed where rounding leaves no finite outputs: the replay finds those.
UNKNOWN = Tolerance(0.5, 0.5, 0.5, 0.5)

# How much log-probabilities of the reference differ between hosts, which add in another order.
BETWEEN_HOSTS = 5e-4

# The largest window that a compile exercises, in tokens. The reference has no cache, and would take
# minutes over longer prompts.
MAX_WINDOW = 1024
MIN_POSITIONS = 48  # a mean over fewer is not steady


@dataclass(frozen=True, slots=True)
class ReferencePrompt:
    """A sequence for the reference: its tokens, of which so many were given. See `GoldenPrompt`.

    `first` is the first position that is scored. It is no less than 1 where there is more than one
    token: what models say after a single token, most often one that begins every text, is no
    measure of what they say anywhere else.
    """

    tokens: Sequence[int]
    given: int
    sampled: bool = False
    text: str | None = None
    pieces: Sequence[str] = ()
    first: int = 0

    @property
    def scored_from(self) -> int:
        return max(self.first, min(1, len(self.tokens) - 1))


def golden_prompts(
    encoded_text: Sequence[int],
    bos: Sequence[int] = (),
    *,
    page_size: int,
    max_model_len: int,
    windows: Sequence[int],
) -> list[ReferencePrompt]:
    """Prompts that cross every boundary of the runtime.

    Prompts of two tokens, of a few, of exactly a page, and of more than two pages, each with the
    tokens `bos` in front that the tokenizer adds. If attention has windows of at most MAX_WINDOW
    tokens, also one that is longer than the widest of these, of which only the positions around the
    border are scored. Where few positions are scored, there are more of the longest that are scored
    throughout, from other places of the text.
    """
    window = max((w for w in windows if w <= MAX_WINDOW), default=0)
    lengths = {min(length, max_model_len) for length in (2, 5, page_size, 2 * page_size + 3)}
    fitting = sorted(lengths)
    longest, num_scored = fitting[-1], sum(max(length - 1, 1) for length in fitting)
    more = max(0, -(-(MIN_POSITIONS - num_scored) // max(longest - 1, 1)))
    places = [(0, length) for length in fitting]
    places += [(n * longest, longest) for n in range(1, more + 1)]
    prompts = [_prompt_at(encoded_text, bos, *place) for place in places]
    beyond = min(window + page_size + 1, max_model_len)
    if window and beyond > longest:
        border = max(window - page_size, 0)
        prompts.append(replace(_prompt_at(encoded_text, bos, 0, beyond), first=border))
    return prompts


def _prompt_at(text: Sequence[int], bos: Sequence[int], start: int, length: int) -> ReferencePrompt:
    """So many tokens: those of the text from a place on, which starts over, behind `bos`."""
    own = (text[i % len(text)] for i in range(start, start + length))
    tokens = [*bos, *own][:length]
    return ReferencePrompt(tokens, given=length)


def golden_outputs(
    gm: GraphModule,
    read: ReadParameter,
    prompts: Sequence[ReferencePrompt],
    model: GoldenModel,
    formats: Mapping[str, Sequence[Rounded]],
) -> Golden:
    """Computes the reference's outputs on these prompts, and the tolerance of each format.

    Args:
        read: gives the weights; for goldens of an artifact those that it stores, in integers where
            they are stored so.
        formats: of each number format the ways in which targets round.

    Raises:
        CompileError: the outputs are not finite.
    """
    ways = [way for each in formats.values() for way in each]
    tokens, first = zip(*((prompt.tokens, prompt.scored_from) for prompt in prompts), strict=True)
    exact, *rounded = rounded_logits(gm, read, tokens, drawn(ways), first)
    if not all(bool(rows.isfinite().all()) for rows in exact):
        raise CompileError(
            "the outputs of the float32 reference are not finite",
            hint="Some weights are probably too large. Check the model in float32.",
        )
    found = [_prompt(*each) for each in zip(prompts, exact, strict=True)]
    noises = iter([difference(found, [rows.numpy() for rows in each]) for each in rounded])
    tolerances = {
        name: loosest(map(tolerance, islice(noises, DRAWS * len(each))))
        for name, each in formats.items()
    }
    return Golden(GOLDEN_FORMAT, model, tolerances, found)


def drawn(ways: Sequence[Rounded]) -> list[Rounded]:
    """All draws of all ways to round, in order."""
    return [replace(way, draw=draw) for way in ways for draw in range(DRAWS)]


def tolerance(noise: GoldenDifference) -> Tolerance:
    """Tolerance of a number format whose own rounding makes this noise."""
    if not isfinite(noise.mean + noise.largest + noise.kl):
        return UNKNOWN
    return Tolerance(
        noise=_short(noise.mean),
        mean=_short(MEAN * noise.mean),
        largest=_short(LARGEST * noise.largest),
        kl=_short(KL * noise.kl),
    )


def loosest(all_of_them: Iterable[Tolerance]) -> Tolerance:
    """The largest of each."""
    return Tolerance(*map(max, zip(*map(astuple, all_of_them), strict=True)))


def outputs_agree(one: Golden, other: Golden) -> bool:
    """Returns whether two goldens are of one model and its prompts, made on whatever hosts."""
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


def _prompt(prompt: ReferencePrompt, logits: torch.Tensor) -> GoldenPrompt:
    """A prompt with what the logits [N, V] of its N scored positions say."""
    tokens, first = prompt.tokens, prompt.scored_from
    pieces = prompt.pieces or [""] * len(tokens)
    positions = [
        GoldenPosition(token, piece=piece) for token, piece in zip(tokens, pieces, strict=True)
    ]
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    top = logprobs.topk(min(TOP, logits.shape[-1]), dim=-1)
    found = zip(positions[first:], top.indices.tolist(), top.values.tolist(), strict=True)
    for i, (position, ids, values) in enumerate(found):
        position.top = [(token, _rounded(p)) for token, p in zip(ids, values, strict=True)]
        position.margin = _rounded(values[0] - values[min(1, len(values) - 1)])
        if first + i + 1 < len(tokens):
            position.next = _rounded(logprobs[i, tokens[first + i + 1]])
    return GoldenPrompt(positions, prompt.given, prompt.sampled, prompt.text)


def _rounded(value: float | torch.Tensor) -> float:
    return round(float(value), 6) + 0.0  # no negative zero


def _short(value: float) -> float:
    """Three digits: more would differ from host to host."""
    return float(f"{value:.3g}")
