"""Mixers that keep one record of a sequence, as kernel tests run them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from ingot.artifact.formats import DType
from tests.support import samples
from tests.targets.cpu.units import Case
from tests.targets.sketch import RECORDS, Sketch

F32: DType = "float32"
BF16: DType = "bfloat16"


def records_of() -> Iterator[tuple[str, Case]]:
    """Columns and rows that fill vectors and blocks and that do not; what a plan reads of them is
    float32 or bfloat16."""
    for size, form in ((37, F32), (96, BF16)):
        yield f"shift-{size}", partial(shift, size=size, form=form)
    for size, taps, activates, with_bias, form in (
        (37, 4, True, True, F32),
        (96, 3, False, False, BF16),
        (20, 2, False, True, F32),
        (24, 7, True, False, F32),
    ):
        yield (
            f"conv-{size}-{taps}",
            partial(
                conv, size=size, taps=taps, activates=activates, with_bias=with_bias, form=form
            ),
        )
    for rule, groups, heads, size, width, by_key, form in (
        ("add", 1, 3, 16, 24, False, F32),
        ("add", 2, 4, 256, 20, False, BF16),
        ("add", 2, 2, 21, 37, True, F32),
        ("delta", 2, 4, 64, 72, False, F32),
        ("delta", 1, 1, 20, 36, True, BF16),
        ("delta", 3, 3, 128, 64, False, F32),
        ("low_rank", 2, 2, 64, 64, True, F32),
        ("low_rank", 3, 3, 17, 5, False, F32),
    ):
        name = "-".join(map(str, (rule, groups, heads, size, width, *(["key"] * by_key))))
        yield (
            name,
            partial(
                recurrence, rule=rule, groups=groups, heads=heads, size=size, width=width,
                by_key=by_key, form=form,
            ),
        )  # fmt: skip
    for size, depth, form in ((37, 16, F32), (96, 5, BF16)):
        yield f"scan-{size}-{depth}", partial(scan, size=size, depth=depth, form=form)


def shift(s: Sketch, size: int, form: DType) -> None:
    s.call("token_shift", s.rows("x", size), s.record(1, size), *RECORDS, form=form)


def conv(s: Sketch, size: int, taps: int, activates: bool, with_bias: bool, form: DType) -> None:
    weight = s.weight("weight", samples.normal(s.drawn("weight"), taps, size))
    bias = s.vector("bias", size) if with_bias else None
    x, tail = s.rows("x", size), s.record(taps - 1, size)
    s.call("short_conv", x, tail, weight, bias, *RECORDS, activates=activates, form=form)


def recurrence(
    s: Sketch, rule: str, groups: int, heads: int, size: int, width: int, by_key: bool, form: DType
) -> None:
    """Keys have unit length, and decays are those of real models: near 1 for some."""
    row = s.rows("row", 2 * groups * size + heads * width)
    q = s.view("q", row, 0, groups, size)
    k = unit_rows(s, "k", s.view("given_k", row, groups * size, groups, size), size)
    v = s.view("v", row, 2 * groups * size, heads, width)
    decays = heads * size if by_key else heads
    rates = s.call("activation", s.rows("decay", decays), kind="sigmoid", out="rates")
    slow = -torch.rand(decays, generator=s.drawn("slow")).pow(4)
    decay = s.call("scale", rates, s.weight("slow", slow), out="log_decay")
    if by_key:
        decay = s.view("decays", decay, 0, heads, size)
    beta = a = b = skip = None
    if rule != "low_rank":
        beta = s.call("activation", s.rows("given_beta", heads), kind="sigmoid", out="beta")
    else:
        a = unit_rows(s, "a", s.rows("given_a", heads, size), size)
        rate = s.call("activation", s.rows("rate", heads, size), kind="sigmoid", out="b_rate")
        b = s.call("gate", a, rate, kind="identity", out="b")
    if rule == "add":
        skip = s.vector("skip", heads)
    state = s.record(heads * size, width)
    s.call("recurrence", q, k, v, decay, beta, a, b, skip, state, *RECORDS, rule=rule, form=form)


def unit_rows(s: Sketch, name: str, x: str, size: int) -> str:
    """Heads of length 1."""
    weight = s.weight(f"{name}_weight", torch.full((size,), size**-0.5))
    return s.call("rms_norm", x, weight, eps=1e-6, offset=0.0, out=name)


def scan(s: Sketch, size: int, depth: int, form: DType) -> None:
    row = s.rows("row", size + 2 * depth)
    x, b = s.view("x", row, 0, size), s.view("b", row, size, depth)
    c = s.view("c", row, size + depth, depth)
    dt = s.call("activation", s.rows("given_dt", size), kind="softplus", out="dt")
    rate = -torch.rand(depth, size, generator=s.drawn("rate")).pow(4)
    weights = s.weight("rate", rate), s.vector("skip", size)
    state = s.record(depth, size)
    s.call("selective_scan", x, dt, b, c, *weights, state, *RECORDS, form=form)
