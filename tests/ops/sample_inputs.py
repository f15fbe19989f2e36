"""Calls of every primitive, small and irregular, from a seeded generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.artifact.traits import TRAITS, Role
from ingot.ops import OPS
from ingot.ops.activation import KINDS
from ingot.ops.pool import HOWS
from ingot.ops.steps import paged_step
from tests.support import samples

Kwargs = dict[str, Any]

# The inputs of a step that say where the keys and values of its sequences lie.
TABLES = [
    name
    for name in TRAITS["paged_attention"].arguments(Role.SEQUENCE)
    if name not in TRAITS["kv_write"].mutates
]


def activation(rng: torch.Generator) -> list[Kwargs]:
    return [
        {"x": samples.normal(rng, 1, 3, 37), "kind": kind, "out_dtype": out_dtype}
        for out_dtype in samples.DTYPES
        for kind in KINDS
    ]


def add(rng: torch.Generator) -> list[Kwargs]:
    return [
        {"x": samples.normal(rng, 1, n, size), "y": samples.normal(rng, 1, n, size)}
        for n, size in ((1, 64), (5, 37))
    ]


def attention(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "q": samples.normal(rng, 1, n, q_heads, size, dtype=dtype),
            "k": samples.normal(rng, 1, n, kv_heads, size, dtype=dtype),
            "v": samples.normal(rng, 1, n, kv_heads, size, dtype=dtype),
            "scale": size**-0.5,
            "window": window,
            "softcap": softcap,
            "sinks": samples.normal(rng, q_heads) if with_sinks else None,
            "out_dtype": dtype,
        }
        for dtype in samples.DTYPES
        for n, q_heads, kv_heads, size, window, softcap, with_sinks in (
            (1, 2, 2, 32, 0, 0.0, False),
            (9, 4, 2, 64, 0, 0.0, True),
            (11, 6, 1, 16, 4, 30.0, False),
        )
    ] + [make(rng, dtype) for dtype in samples.DTYPES for make in (latent_attention, distant)]


def latent_attention(rng: torch.Generator, dtype: torch.dtype) -> Kwargs:
    return {
        "q": samples.normal(rng, 1, 5, 3, 28, dtype=dtype),
        "k": samples.normal(rng, 1, 5, 1, 28, dtype=dtype),
        "v": None,
        "scale": 0.2,
        "value_size": 20,
        "out_dtype": dtype,
    }


def distant(rng: torch.Generator, dtype: torch.dtype) -> Kwargs:
    """Attention both ways that depends on distances."""
    return {
        **{name: samples.normal(rng, 1, 9, 4, 12, dtype=dtype) for name in ("q", "k", "v")},
        **distances(rng, 4, 4, 9, heads=True, rows=True),
        "scale": 0.3,
        "causal": False,
        "out_dtype": dtype,
    }


def cast(rng: torch.Generator) -> list[Kwargs]:
    return [
        {"x": samples.normal(rng, 1, n, size, dtype=dtype), "out_dtype": out_dtype}
        for dtype, out_dtype in (samples.DTYPES, samples.DTYPES[::-1])
        for n, size in ((1, 64), (5, 37))
    ]


def concat(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, n, heads, left),
            "y": samples.normal(rng, 1, n, heads, right, dtype=dtype),
            "out_dtype": dtype,
        }
        for dtype in samples.DTYPES
        for n, heads, left, right in ((1, 1, 64, 16), (5, 3, 20, 37))
    ]


def reorder(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, n, size, dtype=dtype),
            "order": torch.randperm(size, generator=rng).float(),
            "out_dtype": dtype,
        }
        for dtype in samples.DTYPES
        for n, size in ((1, 64), (5, 37))
    ]


def embedding(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "tokens": torch.randint(0, 101, (1, n), generator=rng, dtype=torch.int32),
            "weight": samples.normal(rng, 101, size, dtype=dtype),
        }
        for dtype in samples.DTYPES
        for n, size in ((1, 32), (7, 72))
    ]


# Experts, picks, and what picks them: each row gives a picked one a share that is not 0.
MIXTURES = (
    (3, 1, {"scoring": "sigmoid"}),
    (5, 2, {"scoring": "softmax", "normalise": True}),
    (4, 4, {"scoring": "softmax", "scale": 2.5}),
)


def route(rng: torch.Generator) -> list[Kwargs]:
    rules = [
        *MIXTURES,
        (12, 3, {"scoring": "sigmoid", "groups": 4, "kept_groups": 2, "group_score": "top2"}),
        (6, 2, {"scoring": "softmax", "groups": 3, "kept_groups": 2, "eps": 0.1}),
    ]
    return [
        {
            "logits": samples.normal(rng, 1, n, experts, dtype=dtype),
            "bias": samples.normal(rng, experts) if with_bias else None,
            "top_k": top_k,
            **rule,
        }
        for dtype in samples.DTYPES
        for experts, top_k, rule in rules
        for n, with_bias in ((1, False), (5, True))
    ]


def shares(rng: torch.Generator, n: int, experts: int, top_k: int, rule: Kwargs) -> Tensor:
    """What a router gives of random logits."""
    logits = samples.normal(rng, 1, n, experts)
    return OPS["route"].reference(logits, None, top_k=top_k, **rule)


# Kinds of experts, whether they have biases, and whether they are plain.
EXPERTS = (("silu", False, False), ("clamped", True, False), ("relu2", True, True))


def experts(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, 7, 12, dtype=dtype),
            "shares": shares(rng, 7, count, top_k, rule),
            "gate_up": stack(rng, count, 10 if plain else 20, 12, dtype),
            "down": stack(rng, count, 12, 10, dtype),
            "gate_up_bias": samples.normal(rng, count, 10 if plain else 20) if with_bias else None,
            "down_bias": samples.normal(rng, count, 12) if with_bias else None,
            "kind": kind,
            "top_k": top_k,
            "limit": 0.7,
            "plain": plain,
        }
        for dtype in samples.DTYPES
        for count, top_k, rule in MIXTURES
        for kind, with_bias, plain in EXPERTS
    ]


def expert_gate(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": call["x"],
            "shares": call["shares"],
            "weight": call["gate_up"],
            "bias": call["gate_up_bias"],
            **{name: call[name] for name in ("kind", "top_k", "limit", "plain")},
            "out_dtype": call["x"].dtype,
        }
        for call in experts(rng)
    ]


def expert_sum(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, 7, call["top_k"], 10, dtype=call["x"].dtype),
            "shares": call["shares"],
            "weight": call["down"],
            "bias": call["down_bias"],
            "top_k": call["top_k"],
        }
        for call in experts(rng)
    ]


def stack(rng: torch.Generator, count: int, rows: int, cols: int, dtype: torch.dtype) -> Tensor:
    """Matrices as of `samples.weight`."""
    return torch.stack([samples.weight(rng, rows, cols, dtype) for _ in range(count)])


def gate(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "gate": samples.normal(rng, 1, n, size),
            "up": samples.normal(rng, 1, n, size),
            "kind": kind,
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for n, size, kind in (
            (1, 64, "silu"),
            (5, 200, "gelu"),
            (3, 37, "gelu_tanh"),
            (4, 37, "relu"),
        )
    ]


def head_linear(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, n, heads * num_in, dtype=dtype),
            "weight": samples.weight(rng, heads * num_out, num_in, dtype),
            "out_dtype": dtype,
        }
        for dtype in samples.DTYPES
        for n, heads, num_in, num_out in ((1, 2, 64, 64), (5, 3, 27, 20), (13, 1, 40, 130))
    ]


def kv_write(rng: torch.Generator) -> list[Kwargs]:
    step, num_pages = paged_step(rng, [(1, 9), (5, 5), (2, 18)], page_size=8)
    step["slots"][3] = -1
    return [
        {
            "k": samples.normal(rng, 1, 8, heads, size),
            "v": samples.normal(rng, 1, 8, heads, size),
            **samples.caches(rng, (num_pages, heads, 8, size), dtype),
            "slots": step["slots"],
        }
        for dtype in samples.DTYPES
        for heads, size in ((1, 64), (3, 20))
    ] + [
        {
            "k": samples.normal(rng, 1, 8, 1, 28),
            "v": None,
            "k_cache": samples.normal(rng, num_pages, 1, 8, 28, dtype=dtype),
            "v_cache": None,
            "slots": step["slots"],
        }
        for dtype in samples.DTYPES
    ]


def layer_norm(rng: torch.Generator) -> list[Kwargs]:
    return (
        [
            {
                "x": samples.normal(rng, 1, n, size),
                "weight": samples.scale_vector(rng, size),
                "bias": samples.normal(rng, size) if with_bias else None,
                "eps": eps,
                "out_dtype": out_dtype,
            }
            for out_dtype in samples.DTYPES
            for n, size, eps, with_bias in (
                (1, 64, 1e-5, True),
                (5, 200, 1e-5, False),
                (3, 37, 0.1, True),
            )
        ]
        + [
            {
                "x": samples.normal(rng, 1, 4, 3, 12),
                "weight": samples.normal(rng, size),
                "bias": None,
                "eps": 1e-5,
                "out_dtype": torch.float32,
            }
            for size in (12, 3 * 12)
        ]
        + [
            {
                "x": samples.normal(rng, 1, 4, 3, 12),
                "weight": samples.normal(rng, 36),
                "bias": samples.normal(rng, 36),
                "eps": 1e-5,
                "out_dtype": torch.float32,
            }
        ]
    )


def linear(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, n, num_in, dtype=dtype),
            "weight": samples.weight(rng, num_out, num_in, dtype),
            "bias": samples.normal(rng, num_out) if with_bias else None,
        }
        for dtype in samples.DTYPES
        for n, num_in, num_out, with_bias in (
            (1, 64, 64, False),
            (5, 200, 144, True),
            (13, 37, 27, False),
            (70, 128, 320, True),
        )
    ]


def mul(rng: torch.Generator) -> list[Kwargs]:
    return [
        {"x": samples.normal(rng, 1, n, size), "factor": factor, "out_dtype": out_dtype}
        for out_dtype in samples.DTYPES
        for n, size, factor in ((1, 64, 8.0), (5, 37, 0.3))
    ]


def paged_attention(rng: torch.Generator) -> list[Kwargs]:
    cases = (
        ([(1, 1)], 2, 2, 32, 16, 0, 0.0, False),
        ([(1, 41), (7, 7), (1, 16), (5, 23)], 4, 2, 64, 16, 0, 0.0, False),
        ([(3, 33), (1, 70)], 6, 1, 16, 8, 20, 30.0, True),
    )
    found = []
    for dtype in samples.DTYPES:
        found += [paged_attention_call(rng, dtype, *case) for case in cases]
        latent = paged_attention_call(rng, dtype, *cases[2])
        found.append(latent | {"v_cache": None, "value_size": 12})
    return found


def paged_attention_call(
    rng: torch.Generator,
    dtype: torch.dtype,
    sequences: list[tuple[int, int]],
    q_heads: int,
    kv_heads: int,
    size: int,
    page_size: int,
    window: int,
    softcap: float,
    with_sinks: bool,
) -> Kwargs:
    step, num_pages = paged_step(rng, sequences, page_size)
    pages = (num_pages, kv_heads, page_size, size)
    return {
        "q": samples.normal(rng, 1, len(step["slots"]), q_heads, size, dtype=dtype),
        **samples.caches(rng, pages, dtype),
        **{name: step[name] for name in TABLES},
        "scale": size**-0.5,
        "window": window,
        "softcap": softcap,
        "sinks": samples.normal(rng, q_heads) if with_sinks else None,
        "out_dtype": dtype,
    }


def rms_norm(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, n, size),
            "weight": samples.scale_vector(rng, size),
            "eps": eps,
            "offset": offset,
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for n, size, eps, offset in ((1, 64, 1e-6, 0.0), (5, 200, 1e-5, 1.0), (3, 37, 0.1, 0.0))
    ] + [
        {
            "x": samples.normal(rng, 1, 4, 3, 12),
            "weight": samples.normal(rng, 36),
            "eps": 1e-5,
            "out_dtype": torch.float32,
        }
    ]


def scale(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, n, size),
            "weight": samples.normal(rng, size),
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for n, size in ((1, 64), (5, 37))
    ]


def lerp(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, n, size),
            "y": samples.normal(rng, 1, n, size),
            "share": samples.normal(rng, 1, n, size) if by_rows else None,
            "weight": None if by_rows else samples.normal(rng, size),
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for n, size in ((1, 64), (5, 37))
        for by_rows in (False, True)
    ]


def head_scale(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, n, heads, size),
            "share": samples.normal(rng, 1, n, heads),
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for n, heads, size in ((1, 2, 64), (5, 3, 20))
    ]


def bonus(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "q": samples.normal(rng, 1, n, heads, size),
            "k": samples.normal(rng, 1, n, heads, size),
            "v": samples.normal(rng, 1, n, heads, width),
            "weight": samples.normal(rng, heads * size),
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for n, heads, size, width in ((1, 2, 64, 64), (5, 3, 20, 12))
    ]


# Sequences of a step over records: (rows in this step, position of the first).
OVER_RECORDS = ((3, 0), (1, 7), (0, 0), (5, 2))


def records(rng: torch.Generator, *record: int, count: int = 7) -> Kwargs:
    """A state of that record with random values, and what says where those of a step lie."""
    ends = torch.tensor([rows for rows, _ in OVER_RECORDS]).cumsum(0).tolist()
    spans = [
        (end - rows, end, first) for end, (rows, first) in zip(ends, OVER_RECORDS, strict=True)
    ]
    slots = torch.randperm(count, generator=rng)[: len(spans)]
    return {
        "state": samples.normal(rng, count, *record),
        "spans": torch.tensor(spans, dtype=torch.int32),
        "records": slots.to(torch.int32),
    }


NUM_ROWS = sum(rows for rows, _ in OVER_RECORDS)


def with_tail(rng: torch.Generator, *record: int) -> Kwargs:
    given = records(rng, *record)
    return {"tail": given.pop("state"), **given}


def token_shift(rng: torch.Generator) -> list[Kwargs]:
    return [
        {"x": samples.normal(rng, 1, NUM_ROWS, size), **step, "out_dtype": out_dtype}
        for out_dtype in samples.DTYPES
        for size in (64, 37)
        for step in ({}, with_tail(rng, 1, size))
    ]


def short_conv(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, NUM_ROWS, size),
            "weight": samples.normal(rng, taps, size),
            "bias": samples.normal(rng, size) if with_bias else None,
            "activates": with_bias,
            **step,
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for size, taps, with_bias in ((64, 4, False), (37, 3, True), (20, 7, False))
        for step in ({}, with_tail(rng, taps - 1, size))
    ]


def recurrence(rng: torch.Generator) -> list[Kwargs]:
    return [
        recurrence_call(rng, *case, step, out_dtype)
        for out_dtype in samples.DTYPES
        for case in (
            ("add", 2, 4, 16, 24, False),
            ("delta", 2, 4, 32, 32, False),
            ("delta", 1, 1, 20, 36, True),
            ("low_rank", 3, 3, 16, 16, True),
        )
        for step in (False, True)
    ]


def recurrence_call(
    rng: torch.Generator,
    rule: str,
    groups: int,
    heads: int,
    size: int,
    width: int,
    by_key: bool,
    over_records: bool,
    out_dtype: torch.dtype,
) -> Kwargs:
    """Decays are those of real models: near 1 for some heads."""
    keys = torch.nn.functional.normalize(samples.normal(rng, 1, NUM_ROWS, groups, size), dim=-1)
    decay = -torch.rand(1, NUM_ROWS, heads, size, generator=rng).pow(4)
    removal = torch.nn.functional.normalize(samples.normal(rng, 1, NUM_ROWS, heads, size), dim=-1)
    rate = torch.rand(1, NUM_ROWS, heads, size, generator=rng)
    low_rank, adds = rule == "low_rank", rule == "add"
    return {
        "q": samples.normal(rng, 1, NUM_ROWS, groups, size),
        "k": keys,
        "v": samples.normal(rng, 1, NUM_ROWS, heads, width),
        "decay": decay if by_key else decay[..., 0].contiguous(),
        "rule": rule,
        "beta": None if low_rank else torch.rand(1, NUM_ROWS, heads, generator=rng),
        "a": removal if low_rank else None,
        "b": removal * rate if low_rank else None,
        "skip": samples.normal(rng, heads) if adds else None,
        **(records(rng, heads * size, width) if over_records else {}),
        "out_dtype": out_dtype,
    }


def selective_scan(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, NUM_ROWS, size),
            "dt": torch.rand(1, NUM_ROWS, size, generator=rng),
            "b": samples.normal(rng, 1, NUM_ROWS, depth),
            "c": samples.normal(rng, 1, NUM_ROWS, depth),
            "rate": -torch.rand(depth, size, generator=rng).pow(4),
            "skip": samples.normal(rng, size),
            **step,
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for size, depth in ((64, 16), (37, 5))
        for step in ({}, records(rng, depth, size))
    ]


def rope(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, n, heads, size),
            "table": sample_table(rng, n, rotated),
            "interleaved": interleaved,
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for n, heads, size, rotated, interleaved in (
            (1, 2, 64, 64, False),
            (5, 3, 80, 32, False),
            (3, 1, 16, 12, True),
        )
    ]


def sample_table(rng: torch.Generator, n: int, rotated: int) -> Tensor:
    """A rope table [1, n, rotated] of random angles."""
    angles = torch.randn(1, n, rotated // 2, generator=rng) * 10
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def rope_table(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "positions": torch.randint(0, limit, (1, n), generator=rng, dtype=torch.int32),
            "inv_freq": 1.0 / theta ** (torch.arange(half) / half),
            "scale": scale,
        }
        for n, half, theta, limit, scale in (
            (1, 32, 1e4, 4096, 1.0),
            (9, 64, 1e6, 131072, 1.0),
            (5, 13, 5e5, 1000, 1.25),
        )
    ] + [
        {
            "positions": torch.tensor([[0, 4, 5, 9, 1000]], dtype=torch.int32),
            "inv_freq": torch.tensor([1.0, 0.1]),
            "temperature": 0.3,
            "length": 5,
        }
    ]


def segment_attention(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "q": samples.normal(rng, 1, sum(lengths), q_heads, size, dtype=dtype),
            "k": samples.normal(rng, 1, sum(lengths), kv_heads, size, dtype=dtype),
            "v": samples.normal(rng, 1, sum(lengths), kv_heads, value_size, dtype=dtype),
            "spans": segments(lengths),
            "scale": size**-0.5,
            **words,
            "out_dtype": dtype,
        }
        for dtype in samples.DTYPES
        for lengths, q_heads, kv_heads, size, value_size, words in (
            ((1,), 2, 2, 32, 32, {}),
            ((5, 1, 0, 7), 4, 2, 20, 12, {}),
            ((3, 8), 3, 1, 16, 16, {"causal": True, "softcap": 5.0}),
            ((4, 9), 2, 2, 12, 12, {"window": 3}),
            ((11, 2), 6, 3, 8, 8, {"causal": True, "window": 4}),
            ((9, 2), 4, 4, 8, 8, distances(rng, 4, 4, 11, heads=True)),
            ((2, 9), 4, 2, 8, 8, distances(rng, 4, 2, 11, rows=True)),
        )
    ]


def distances(
    rng: torch.Generator, q_heads: int, kv_heads: int, count: int, *, heads: bool = False,
    rows: bool = False,
) -> Kwargs:  # fmt: skip
    """What attention of so many rows adds by distance, for heads or for rows: of 7 distances the
    first and the last two share a bucket."""
    made = {"buckets": torch.tensor([0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 4.0])}
    if heads:
        made["bias"] = samples.normal(rng, q_heads, 5)
    if rows:
        made["q_bias"] = samples.normal(rng, 1, count, q_heads, 5)
        made["k_bias"] = samples.normal(rng, 1, count, kv_heads, 5)
    return made


def segments(lengths: Sequence[int], unpooled: Sequence[int] = ()) -> Tensor:
    """The spans of segments that lie one behind the other, of which pools leave some rows out."""
    ends = torch.tensor(lengths, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    third = torch.tensor(unpooled or [0] * len(lengths))
    return torch.stack([ends - torch.tensor(lengths), ends, third], 1).int()


def select_rows(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, 7, 37, dtype=dtype),
            "rows": torch.tensor(rows, dtype=torch.int32),
        }
        for dtype in samples.DTYPES
        for rows in ([6], [0, 3, 5], [])
    ]


def pool(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, sum(lengths), 37, dtype=dtype),
            "spans": segments(lengths, unpooled),
            "how": how,
        }
        for dtype in samples.DTYPES
        for lengths, unpooled in (((1,), ()), ((5, 2, 70), (0, 0, 3)), ((130,), (129,)))
        for how in HOWS
    ]


def clamp(rng: torch.Generator) -> list[Kwargs]:
    return [
        {"x": samples.normal(rng, 5, 37, dtype=dtype), "low": -0.3, "high": high}
        for dtype in samples.DTYPES
        for high in (0.7, 3e38)
    ]


def soft_cap(rng: torch.Generator) -> list[Kwargs]:
    return [
        {"x": 20 * samples.normal(rng, 1, n, size), "cap": cap, "out_dtype": out_dtype}
        for out_dtype in samples.DTYPES
        for n, size, cap in ((1, 64, 30.0), (5, 37, 2.5))
    ]


SAMPLES = {
    "activation": activation,
    "add": add,
    "attention": attention,
    "cast": cast,
    "concat": concat,
    "pool": pool,
    "reorder": reorder,
    "embedding": embedding,
    "expert_gate": expert_gate,
    "expert_sum": expert_sum,
    "experts": experts,
    "gate": gate,
    "head_linear": head_linear,
    "kv_write": kv_write,
    "layer_norm": layer_norm,
    "linear": linear,
    "mul": mul,
    "paged_attention": paged_attention,
    "rms_norm": rms_norm,
    "rope": rope,
    "rope_table": rope_table,
    "route": route,
    "segment_attention": segment_attention,
    "select_rows": select_rows,
    "clamp": clamp,
    "soft_cap": soft_cap,
    "scale": scale,
    "lerp": lerp,
    "bonus": bonus,
    "head_scale": head_scale,
    "token_shift": token_shift,
    "short_conv": short_conv,
    "recurrence": recurrence,
    "selective_scan": selective_scan,
}
