"""What is made of the rows of whole texts."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.artifact.pooler import Pooler
from ingot.errors import RequestError
from ingot.runtime.scoring import activated, by_rank, finished

NESTED = Pooler(task="embed", pooling=("mean",), size=3, normalize=True, max_tokens=9, nested=True)
ROWS = np.array([[3, 4, 12], [0, 0, 0]], np.float32)


def test_vectors_are_cut_before_they_are_made_1_long() -> None:
    assert np.allclose(finished(ROWS, NESTED, 2), [[0.6, 0.8], [0, 0]])
    assert np.allclose(finished(ROWS, NESTED), [[3 / 13, 4 / 13, 12 / 13], [0, 0, 0]])


@pytest.mark.parametrize("size", [0, 4, -1, True, "2", 2.0])
def test_sizes_that_vectors_do_not_have(size: object) -> None:
    with pytest.raises(RequestError, match=r"dimensions is .*\n.*1 to 3"):
        finished(ROWS, NESTED, size)


def test_equal_scores_keep_their_order() -> None:
    assert by_rank(np.array([1, 3, 1, 3], np.float32), 3) == [(1, 3.0), (3, 3.0), (0, 1.0)]


def test_scores_of_any_size_become_probabilities() -> None:
    scores = np.array([[1e4, 0, -1e4]], np.float32)
    labels = Pooler(task="classify", pooling=("first",), size=3, max_tokens=9, activation="softmax")
    assert np.array_equal(activated(scores, labels), [[1, 0, 0]])
