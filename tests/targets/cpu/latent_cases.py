"""Plans of latent attention: matrices for every head, and rows that are keys and values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch

from ingot.artifact.formats import DType, Format, rounded_rows
from tests.support import samples
from tests.targets.cpu.units import Case
from tests.targets.sketch import LIMITS, STEP, Sketch


def head_linears(dtype: DType) -> Iterator[tuple[str, Case]]:
    """Odd inputs, narrow last panels and several; as many heads as threads, more, fewer."""

    def case(s: Sketch, heads: int, inputs: int, outputs: int, form: DType) -> None:
        stacked = samples.weight(s.drawn("weight"), heads * outputs, inputs, getattr(torch, dtype))
        made = s.rows("made", heads * inputs + 8, form=dtype)
        x = s.view("x", made, 8, heads * inputs)
        s.call("head_linear", x, s.weight("weight", stacked), form=form)

    for heads, inputs, outputs in ((4, 32, 64), (3, 27, 20), (1, 40, 200)):
        form: DType = dtype if heads == 3 else "float32"
        yield (
            f"head-linear-{outputs}x{inputs}",
            partial(case, heads=heads, inputs=inputs, outputs=outputs, form=form),
        )


def concats(dtype: DType) -> Iterator[tuple[str, Case]]:
    def case(s: Sketch, heads: int, left: int, right: int) -> None:
        x, y = s.rows("x", heads, left), s.rows("y", heads, right, form=dtype)
        s.call("concat", x, y, form=dtype, shape=(heads, left + right))

    for heads, left, right in ((1, 64, 16), (3, 20, 37)):
        yield f"concat-{left}-{right}", partial(case, heads=heads, left=left, right=right)


def reorders(dtype: DType) -> Iterator[tuple[str, Case]]:
    def case(s: Sketch, size: int) -> None:
        order = s.weight("order", torch.randperm(size, generator=s.drawn("order")).float())
        s.call("reorder", s.rows("x", size, form=dtype), order, form=dtype)

    for size in (20, 300):
        yield f"reorder-{size}", partial(case, size=size)


def latents(dtype: DType, kept: DType) -> Iterator[tuple[str, Case]]:
    """Heads that fill a tile of rows and that do not; sizes off the vectors; pages of 1 to 4 key
    groups; the sizes of published models."""

    def case(
        s: Sketch, heads: int, values: int, turned: int, page_size: int, softcap: float = 0.0,
        window: int = 0, block: int = 0,
    ) -> None:  # fmt: skip
        size = values + turned
        form = rounded_rows(math.gcd(size, values)) if kept == "int8" else Format(kept)
        q, cache = s.rows("q", heads, size, form=dtype), s.latent_cache(size, form, page_size)
        if page_size == LIMITS.page_size:  # in pages of that size sequences own their slots
            s.call("kv_write", s.rows("k", 1, size), None, "slots", cache)
        scalars = {"scale": size**-0.5, "window": window, "softcap": softcap}
        out = s.call(
            "paged_attention", q, cache, None, *STEP, **scalars, value_size=values, out="attended",
            form="float32" if block else dtype, shape=(heads, values),
        )  # fmt: skip
        if block:
            s.call("cast", s.view("row", out, 0, heads * values), form=rounded_rows(block))

    shapes = ((16, 512, 64, 16), (3, 36, 12, 32), (5, 20, 8, 64), (1, 64, 64, 16))
    for heads, values, turned, page_size in shapes[:: 2 if dtype == "float32" else 1]:
        sizes = {"heads": heads, "values": values, "turned": turned, "page_size": page_size}
        yield f"latent-{values}", partial(case, **sizes)
    yield (
        "latent-window",
        partial(case, heads=4, values=40, turned=20, page_size=16, softcap=20.0, window=70),
    )
    yield "latent-quantize", partial(case, heads=4, values=64, turned=16, page_size=16, block=32)
