"""What `segment_attention` means: PyTorch's own attention of each segment, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ingot.ops import OPS
from tests.ops.sample_inputs import segments
from tests.support import samples

LENGTHS = (5, 1, 0, 13, 2)
MASKS = [
    {},
    {"causal": True},
    {"window": 1},
    {"window": 4},
    {"causal": True, "window": 4},
    {"window": 100},
]
reference = OPS["segment_attention"].reference


def drawn(heads: int = 4, kv_heads: int = 2, size: int = 12, value_size: int = 8) -> list[Tensor]:
    rng, count = torch.Generator().manual_seed(3), sum(LENGTHS)
    shapes = ((heads, size), (kv_heads, size), (kv_heads, value_size))
    return [samples.normal(rng, 1, count, *shape) for shape in shapes]


def by_torch(rows: Sequence[Tensor], scale: float, causal: bool = False, window: int = 0) -> Tensor:
    """The same segment by segment, with a mask of what is seen."""
    pieces = zip(*(x.double().transpose(1, 2).split(LENGTHS, 2) for x in rows), strict=True)
    made = []
    for q, k, v in pieces:
        near = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])
        seen = near.abs() < (window or len(near) + 1)
        if causal:
            seen &= near >= 0
        made.append(
            scaled_dot_product_attention(
                q, k, v, attn_mask=seen, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
            )
        )
    return torch.cat(made, 2).transpose(1, 2)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_it_is_the_attention_of_pytorch_in_each_segment(mask: dict, kv_heads: int) -> None:
    rows = drawn(kv_heads=kv_heads)
    got = reference(*rows, segments(LENGTHS), 0.3, **mask)
    expected = by_torch(rows, 0.3, **mask)
    torch.testing.assert_close(got, expected.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mask", [each for each in MASKS if each], ids=str)
def test_a_mask_that_is_left_out_is_noticed(mask: dict) -> None:
    """The control; only a window as long as the segments is none."""
    rows = drawn()
    got = reference(*rows, segments(LENGTHS), 0.3)
    same = torch.allclose(got, by_torch(rows, 0.3, **mask).float(), atol=1e-3)
    assert same == (mask == {"window": 100})


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_a_causal_segment_is_a_sequence_without_a_past(window: int, softcap: float) -> None:
    rows = drawn(value_size=12)
    got = reference(*rows, segments(LENGTHS), 0.3, True, window, softcap)
    pieces = zip(*(x.split(LENGTHS, 1) for x in rows), strict=True)
    plain = OPS["attention"].reference
    expected = torch.cat([plain(*piece, 0.3, window, softcap) for piece in pieces], 1)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def distances(rng: torch.Generator) -> dict[str, Tensor]:
    """What heads, queries and keys add; distances of more than 3 have the buckets of 3."""
    made = {"bias": (4, 5), "q_bias": (1, sum(LENGTHS), 4, 5), "k_bias": (1, sum(LENGTHS), 2, 5)}
    added = {name: samples.normal(rng, *shape) for name, shape in made.items()}
    return {**added, "buckets": torch.tensor([4.0, 4.0, 3.0, 2.0, 0.0, 1.0, 1.0])}


def in_loops(rows: Sequence[Tensor], scale: float, given: dict[str, Tensor]) -> Tensor:
    """Attention with biases by distance, one score after the other."""
    q, k, v = (x[0].double() for x in rows)
    out = torch.zeros(1, len(q), q.shape[1], v.shape[2], dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for begin, end, _ in segments(LENGTHS).tolist():
        for i, h in itertools.product(range(begin, end), range(q.shape[1])):
            scores = []
            for j in range(begin, end):
                bucket = int(given["buckets"][min(max(i - j, -3), 3) + 3])
                x = q[i, h] @ k[j, h // group]
                x = x + given["q_bias"][0, i, h, bucket] + given["k_bias"][0, j, h // group, bucket]
                scores.append(x * scale + given["bias"][h, bucket])
            weights = torch.stack(scores).softmax(0)
            out[0, i, h] = weights @ v[begin:end, h // group]
    return out


@pytest.mark.parametrize("left_out", ["", "bias", "q_bias", "k_bias", "buckets"])
def test_biases_depend_on_distances(left_out: str) -> None:
    """Each that is left out is noticed."""
    rows, given = drawn(), distances(torch.Generator().manual_seed(5))
    got = reference(*rows, segments(LENGTHS), 0.3, **given)
    less = {n: x * 0 if n == left_out else x for n, x in given.items()}
    same = torch.allclose(got.double(), in_loops(rows, 0.3, less), atol=1e-5)
    assert same == (not left_out)


def test_segments_know_nothing_of_others_nor_of_where_they_lie() -> None:
    """Not even what no number is, and in any order."""
    rows, spans = drawn(), segments(LENGTHS)
    whole = reference(*rows, spans, 0.3)
    assert torch.equal(reference(*rows, spans.flip(0), 0.3), whole)
    begin, end = spans[3, :2].tolist()
    poisoned = [torch.full_like(x, torch.nan) for x in rows]
    for to, x in zip(poisoned, rows, strict=True):
        to[:, begin:end] = x[:, begin:end]
    assert torch.equal(reference(*poisoned, spans, 0.3)[:, begin:end], whole[:, begin:end])


def test_the_third_number_of_a_span_says_nothing() -> None:
    rows, spans = drawn(), segments(LENGTHS)
    moved = spans + torch.tensor([0, 0, 7])
    for mask in MASKS:
        same = reference(*rows, spans, 0.3, **mask)
        assert torch.equal(reference(*rows, moved, 0.3, **mask), same)
