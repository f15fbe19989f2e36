"""Measures what number formats cost on text: the checkpoint's own numbers beside the artifact's."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import GraphModule

from ingot.artifact.quality import Quality, VectorQuality
from ingot.compiler.quality_texts import ScoredText
from ingot.compiler.quantization.graph_matrices import EMBEDDING, matrix_nodes, shares_of_stacks
from ingot.compiler.reference import ReadParameter
from ingot.compiler.rounding import Rounded, SideBySide

DIGITS = 3
SIDE = 1024  # of the matrices whose product tells how fast this machine is
NONE = -1


@dataclass(frozen=True, slots=True)
class Setting:
    """Setting of a measurement of quality.

    Attributes:
        gm: the exported graph.
        read: gives the checkpoint's own numbers.
        ways: how targets round, with the numbers that they store.
        texts: what is read.
    """

    gm: GraphModule
    read: ReadParameter
    ways: Sequence[Rounded]
    texts: Sequence[ScoredText]

    @property
    def positions(self) -> int:
        return sum(len(text.tokens) - 1 for text in self.texts)


def measure(setting: Setting) -> Quality:
    """Measures the quality of the worst of the ways to round."""
    texts = setting.texts
    tokens, first = [text.tokens for text in texts], [1] * len(texts)
    runs = SideBySide(setting.gm, setting.read, tokens, setting.ways, first=first)
    following = torch.tensor([token for each in tokens for token in [*each[2:], NONE]])
    scores = [Scores(following) for _ in setting.ways]
    for base, *ours in runs.logits_by_parts():
        for score, rows in zip(scores, ours, strict=True):
            score.add(base[0], rows[0])
    name = ", ".join(dict.fromkeys(text.name for text in texts))
    return max((each.quality(name) for each in scores), key=lambda each: each.kl)


def measure_vectors(setting: Setting) -> VectorQuality:
    """Measures how near the vectors of texts stay, by the worst of the ways to round."""
    tokens = [text.tokens for text in setting.texts]
    base, *ours = (
        rows[0].double()
        for rows in SideBySide(setting.gm, setting.read, tokens, setting.ways).run()
    )
    found = [torch.nn.functional.cosine_similarity(base, rows) for rows in ours]
    worst = min(found, key=lambda cosines: float(cosines.min()))
    return VectorQuality(
        texts=len(tokens),
        cosine=round(float(worst.min()), 6),
        mean_cosine=round(float(worst.mean()), 6),
    )


def seconds_of(setting: Setting, sizes: Mapping[str, int]) -> float:
    """About how long that takes here. `sizes` are those of parameters, by name."""
    tried = torch.ones(SIDE, SIDE)
    torch.mm(tried, tried)  # the first is slower
    begun = time.perf_counter()
    torch.mm(tried, tried)
    a_second = 2 * SIDE**3 / (time.perf_counter() - begun)
    shares = shares_of_stacks(setting.gm)
    parameters = sum(
        shares.get(name, 1.0) * sizes.get(name, 0)
        for name, node in matrix_nodes(setting.gm)
        if node.target is not EMBEDDING
    )
    return 2 * parameters * setting.positions * (1 + len(setting.ways)) / a_second


class Scores:
    """The divergence of two models at each position, summed up over parts of the vocabulary.

    A part is summed up in float32, and parts in float64.
    """

    def __init__(self, following: Tensor) -> None:
        """`following` [N] are the tokens that follow in the text; NONE where it ends."""
        self.base, self.ours = _Running(following), _Running(following)
        # The sum of exp(base - its highest) * (base - ours).
        self.apart = torch.zeros(len(following), dtype=torch.float64)

    def add(self, base: Tensor, ours: Tensor) -> None:
        """Takes the logits [N, part] of the next tokens of the vocabulary."""
        before = self.base.highest
        weights = self.base.add(base)
        self.ours.add(ours)
        self.apart *= _scale(before, self.base.highest)
        self.apart += (base - ours).mul_(weights).sum(-1)

    def quality(self, text: str) -> Quality:
        """The figures. KL is infinite where a number is none."""
        base, ours = self.base, self.ours
        kl = self.apart / base.total - base.normalizer() + ours.normalizer()
        kl = torch.where(kl.isfinite(), kl.clamp_min(0.0), math.inf)
        error = kl.std() / math.sqrt(len(kl)) if len(kl) > 1 else kl.new_zeros(())
        return Quality(
            positions=len(kl),
            kl=_short(kl.mean()),
            kl_error=_short(error),
            kl_p99=_short(kl.sort().values[math.ceil(0.99 * len(kl)) - 1]),
            kl_largest=_short(kl.max()),
            same_top=_short((base.likeliest == ours.likeliest).double().mean()),
            perplexity=_short(ours.perplexity()),
            base_perplexity=_short(base.perplexity()),
            text=text,
        )


class _Running:
    """Sums over the logits of each position, as parts of the vocabulary come."""

    def __init__(self, following: Tensor) -> None:
        count = len(following)
        self.following = following
        self.highest = torch.full((count,), -math.inf)
        self.total = torch.zeros(count, dtype=torch.float64)  # of exp(logit - highest)
        self.likeliest = torch.zeros(count, dtype=torch.int64)
        self.found = torch.zeros(count)  # the logit of what follows
        self.known = 0  # tokens of the vocabulary so far

    def add(self, logits: Tensor) -> Tensor:
        """Returns exp(logit - highest)."""
        highest, places = logits.max(-1)
        self.likeliest = torch.where(highest > self.highest, places + self.known, self.likeliest)
        before, self.highest = self.highest, torch.maximum(self.highest, highest)
        weights = (logits - self.highest[:, None]).exp_()
        self.total *= _scale(before, self.highest)
        self.total += weights.sum(-1)
        columns = self.following - self.known
        inside = (columns >= 0) & (columns < logits.shape[-1])
        here = logits.gather(1, columns.clamp(0, logits.shape[-1] - 1)[:, None])[:, 0]
        self.found = torch.where(inside, here, self.found)
        self.known += logits.shape[-1]
        return weights

    def normalizer(self) -> Tensor:
        return self.highest + self.total.log()

    def perplexity(self) -> Tensor:
        """Perplexity of the tokens that follow, where one does."""
        return (self.normalizer() - self.found)[self.following != NONE].mean().exp()


def _scale(before: Tensor, after: Tensor) -> Tensor:
    """Factor that turns sums of exp(x - before) into those of exp(x - after)."""
    return (before - after).double().exp()


def _short(value: Tensor) -> float:
    """A few digits: more would differ from host to host."""
    return float(f"{float(value):.{DIGITS}g}")
