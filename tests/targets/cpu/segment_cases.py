"""Attention over segments and what is pooled of them, as kernel tests run it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from ingot.artifact.formats import DType, rounded_rows
from ingot.models.distances import Term
from ingot.ops.pool import HOWS
from tests.support import samples
from tests.targets.cpu.units import Case
from tests.targets.sketch import Sketch


def segments_of(dtype: DType) -> Iterator[tuple[str, Case]]:
    """Groups of 1 to 7 queries, heads that fill vectors and that do not, all masks, and all that
    depends on distances."""

    def case(
        s: Sketch, dtype: DType, heads: int, kv_heads: int, size: int, causal: bool = False,
        window: int = 0, softcap: float = 0.0, block: int = 0, terms: tuple[Term, ...] = (),
    ) -> None:  # fmt: skip
        counts = (heads, kv_heads, kv_heads)
        row = s.rows("row", sum(counts) * size, form=dtype)
        places = (0, heads * size, (heads + kv_heads) * size)
        rows = [
            s.view(name, row, place, count, size)
            for name, place, count in zip("qkv", places, counts, strict=True)
        ]
        attended = s.call(
            "segment_attention", *rows, "spans", *added_to(s, terms, heads, kv_heads),
            scale=size**-0.5, causal=causal, window=window, softcap=softcap,
            form="float32" if block else dtype,
        )  # fmt: skip
        if block:
            whole = s.view("whole", attended, 0, heads * size)
            s.call("cast", whole, out="rounded", form=rounded_rows(block))

    for heads, kv_heads, size, words in (
        (2, 2, 72, {}),
        (6, 1, 12, {"window": 5}),
        (4, 2, 64, {"causal": True}),
        *(((2, 2, 64, {"block": 32}),) if dtype == "float32" else ()),
        (3, 3, 80, {"window": 70, "softcap": 2.0}),
        (7, 1, 20, {"causal": True, "window": 33}),
        (3, 3, 20, {"terms": ("heads",)}),
        (4, 2, 16, {"terms": ("queries", "keys"), "window": 40, "softcap": 3.0}),
        *(((2, 1, 128, {}),) if dtype == "bfloat16" else ()),
    ):
        name = "segments-" + "-".join(map(str, (heads, kv_heads, size, *words)))
        name = "-".join((name, *words.get("terms", ())))
        yield name, partial(case, dtype=dtype, heads=heads, kv_heads=kv_heads, size=size, **words)


def added_to(
    s: Sketch, terms: tuple[Term, ...], heads: int, kv_heads: int
) -> tuple[str | None, ...]:
    """The operands with what terms add for 11 buckets of distances, which end at 23."""
    if not terms:
        return ()
    buckets = (torch.arange(-23, 24) * 0.3).round().clamp(-5, 5) + 5
    by_rows = {"queries": ("q_bias", heads), "keys": ("k_bias", kv_heads)}
    given = {term: s.rows(name, n, 11) for term, (name, n) in by_rows.items() if term in terms}
    if "heads" in terms:
        table = samples.normal(s.drawn("bias"), heads, 11) * 3
        given["heads"] = s.weight("bias", table)
    names = (given.get(term) for term in ("queries", "keys", "heads"))
    return (*names, s.weight("buckets", buckets))


def pools_of(dtype: DType) -> Iterator[tuple[str, Case]]:
    """Every way to make a row of a segment, of rows that fill vectors and that do not."""

    def case(s: Sketch, how: str, size: int) -> None:
        s.call("pool", s.rows("x", size, form=dtype), "spans", how=how, form=dtype)

    for how in HOWS:
        for size in (37, 96):
            yield f"pool-{how}-{size}", partial(case, how=how, size=size)
