"""Divergence, top tokens and perplexity of logits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.curve_scores import AT_ONCE, Scores

LOG2, LOG3 = math.log(2), math.log(3)


def test_figures_of_a_text_by_hand():
    base = np.log([[9, 1, 1], [1, 1, 2], [2, 1, 1], [1, 2, 1]])
    ours = np.log([[1, 9, 9], [1, 1, 2], [1, 1, 2], [1, 2, 1]])
    scores = Scores()
    scores.add([0, 1, 2, 0], base, ours)
    # The first position does not count. Position 2 has 1/2, 1/4, 1/4 beside 1/4, 1/4, 1/2.
    apart = (1 / 2 - 1 / 4) * LOG2
    assert scores.figures() == {
        "positions": 3,
        "kl": pytest.approx(apart / 3, rel=1e-3),
        "kl_error": pytest.approx(np.std([0, apart, 0]) / math.sqrt(3), rel=1e-3),
        "same_top": pytest.approx(2 / 3, rel=1e-3),
        "perplexity": pytest.approx(math.sqrt(2 * 4), rel=1e-3),
        "base_perplexity": pytest.approx(2.0, rel=1e-3),
    }


def test_long_texts_are_scored_in_pieces_that_change_nothing():
    random = np.random.default_rng(0)
    tokens = random.integers(0, 7, 2 * AT_ONCE + 3).tolist()
    base, ours = random.normal(size=(2, len(tokens), 7))
    whole, parts = Scores(), Scores()
    whole.add(tokens, base, ours)
    for i in range(1, len(tokens)):
        parts.add(tokens[i - 1 : i + 2], base[i - 1 : i + 2], ours[i - 1 : i + 2])
    assert whole.figures()["positions"] == len(tokens) - 1 == len(whole.kl)
    assert len(whole.lost) == len(tokens) - 2
    # Pieces of three overlap: their second position is the one that counts once.
    assert np.allclose(whole.kl, [*parts.kl[::2][: len(whole.kl) - 1], parts.kl[-1]])


def test_logits_of_another_text_or_vocabulary_are_refused():
    with pytest.raises(ValueError, match=r"logits \(2, 3\) and \(2, 4\) of 2 tokens"):
        Scores().add([0, 1], np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(ValueError, match="of 3 tokens"):
        Scores().add([0, 1, 2], np.zeros((2, 3)), np.zeros((2, 3)))
