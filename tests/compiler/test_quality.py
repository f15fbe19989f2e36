"""What number formats cost on text, beside sums over whole distributions."""

from __future__ import annotations

import math

import pytest
import torch

from ingot.artifact.quality import Quality, quality_line
from ingot.compiler.quality import NONE, Scores


def scored(base: torch.Tensor, ours: torch.Tensor, following: list[int], part: int) -> Quality:
    """The figures of logits that come by parts of the vocabulary."""
    scores = Scores(torch.tensor(following))
    for start in range(0, base.shape[-1], part):
        scores.add(base[:, start : start + part], ours[:, start : start + part])
    return scores.quality("a text")


@pytest.mark.parametrize("part", [1, 7, 100])
@pytest.mark.parametrize("scale", [0.1, 1.0, 300.0])  # the last overflows a sum that is not shifted
def test_figures_are_those_of_whole_distributions(part: int, scale: float) -> None:
    rng = torch.Generator().manual_seed(0)
    base = scale * torch.randn(60, 100, generator=rng, dtype=torch.float64)
    ours = base + 0.3 * torch.randn(60, 100, generator=rng, dtype=torch.float64)
    following = [*torch.randint(0, 100, (59,), generator=rng).tolist(), NONE]
    p, q = base.log_softmax(-1), ours.log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    found = scored(base, ours, following, part)
    near = {"rel": 6e-3, "abs": 1e-12}
    assert found.kl == pytest.approx(float(kl.mean()), **near)
    assert found.kl_error == pytest.approx(float(kl.std()) / math.sqrt(60), **near)
    assert found.kl_p99 == found.kl_largest == pytest.approx(float(kl.max()), **near)
    same = (base.argmax(-1) == ours.argmax(-1)).double().mean()
    assert found.same_top == pytest.approx(float(same), **near)
    for name, logprobs in (("perplexity", q), ("base_perplexity", p)):
        expected = (-logprobs[torch.arange(59), following[:59]]).mean().exp()
        assert getattr(found, name) == pytest.approx(float(expected), **near)


def test_the_99th_percentile_leaves_one_in_a_hundred_out() -> None:
    base = torch.zeros(200, 2, dtype=torch.float64)
    ours = base.clone()
    ours[:3, 0] = torch.tensor([3.0, 2.0, 1.0])
    found = scored(base, ours, [0] * 200, 2)
    assert found.kl_largest > found.kl_p99 > 0  # the third of 200
    assert scored(base[2:], ours[2:], [0] * 198, 2).kl_p99 == 0


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_what_is_no_number_is_infinitely_far(wrong: float, row: int) -> None:
    base = torch.randn(3, 8, dtype=torch.float64)
    ours = base.clone()
    ours[row, 5] = wrong
    assert scored(base, ours, [1, 2, NONE], 4).kl == math.inf
    assert scored(base, base, [1, 2, NONE], 4).kl == 0


def test_the_figures_read_as_llama_cpps_do() -> None:
    found = scored(torch.zeros(4, 3, dtype=torch.float64), torch.eye(4, 3).double(), [0] * 4, 3)
    line = quality_line(found)
    assert (
        line.startswith("mean KL 0.09 ± 0.03, 99 % 0.12")
        and "same top token" in line
        and "(4 positions)" in line
    )
    assert "perplexity" in line and "of the checkpoint 3 (" in line
    assert "--no-quality" in quality_line(None)
