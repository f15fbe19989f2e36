"""Attention over a batch against the op of one sequence."""

from __future__ import annotations

import pytest
import torch

from ingot.onnx.attention import attend, visible
from ingot.ops import OPS
from ingot.ops.attention import SoftmaxScope
from tests.support.samples import normal

HEADS, KV_HEADS, SIZE, SCALE = 4, 2, 8, 0.3
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("sinks", [None, SINKS])
def test_chunks_of_padded_sequences_are_the_sequences(
    window: int, softcap: float, sinks: torch.Tensor | None
) -> None:
    rng = torch.Generator().manual_seed(0)
    lengths, longest = (9, 4), 9
    q, k, v = (normal(rng, 2, longest, heads * SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS))
    mask = torch.tensor([[i >= longest - length for i in range(longest)] for length in lengths])
    past: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
    parts = []
    for start, end in ((0, 5), (5, 8), (8, 9)):
        x = [each[:, start:end] for each in (q, k, v)]
        seen = visible(mask[:, :end].long(), x[0], window)
        mixed, *past = attend(
            *x, seen, past, (HEADS, KV_HEADS), SoftmaxScope(SCALE, 0, softcap, sinks)
        )
        parts.append(mixed)
    whole = torch.cat(parts, 1)
    assert whole.isfinite().all()
    for row, length in enumerate(lengths):
        own = slice(longest - length, None)
        heads = [x[row : row + 1, own].unflatten(2, (-1, SIZE)) for x in (q, k, v)]
        expected = OPS["attention"].reference(*heads, SCALE, window, softcap, sinks).flatten(2)
        torch.testing.assert_close(whole[row : row + 1, own], expected, rtol=1e-5, atol=1e-5)


def test_without_a_mask_all_before_is_visible() -> None:
    seen = visible(None, torch.zeros(2, 4), window=2)
    assert seen.tolist() == [[[
        [True, False, False, False],
        [True, True, False, False],
        [False, True, True, False],
        [False, False, True, True],
    ]]]  # fmt: skip
