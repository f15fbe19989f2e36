"""Mixtures of experts: how rows pick them, and their products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from ingot.artifact.formats import DType, Format
from ingot.artifact.plan import Attr
from ingot.compiler.quantization.search import quantize_rows
from ingot.ops.scaled import Scaled
from tests.support import samples
from tests.targets.cpu.matrices import (
    drawn_rows,
    in_bits,
    int4,
    int8,
    multipliers_beside_zeros,
    with_bytes,
    with_minimums,
    with_zeros,
    zeros_beside,
)
from tests.targets.cpu.units import Case
from tests.targets.sketch import Sketch

# Groups, biases, sums that are normalised or not, all experts picked, one, and many.
ROUTERS: dict[str, tuple[int, bool, dict[str, Attr]]] = {
    "softmax-8": (8, False, {"scoring": "softmax", "top_k": 2, "normalise": True}),
    "softmax-60": (60, True, {"scoring": "softmax", "top_k": 4, "eps": 1e-12, "normalise": True}),
    "all-5": (5, False, {"scoring": "softmax", "top_k": 5, "scale": 2.5}),
    "one-3": (3, True, {"scoring": "sigmoid", "top_k": 1}),
    "groups-24": (
        24,
        True,
        {"scoring": "sigmoid", "top_k": 6, "groups": 6, "kept_groups": 2, "normalise": True}
        | {"group_score": "top2", "eps": 1e-20, "scale": 2.5},
    ),
    "groups-max-16": (
        16,
        False,
        {"scoring": "softmax", "top_k": 3, "groups": 4, "kept_groups": 3, "group_score": "max"},
    ),
    "groups-of-one": (
        4,
        False,
        {"scoring": "sigmoid", "top_k": 2, "groups": 4, "kept_groups": 2, "group_score": "top2"},
    ),
}


def routers(dtype: DType) -> Iterator[tuple[str, Case]]:
    def case(s: Sketch, experts: int, with_bias: bool, attrs: dict[str, Attr]) -> None:
        logits = s.rows("logits", experts, form=dtype)
        bias = s.weight("bias", samples.normal(s.drawn("bias"), experts)) if with_bias else None
        s.call("route", logits, bias, out="shares", **attrs)

    for name, (experts, with_bias, attrs) in ROUTERS.items():
        yield (
            f"route-{name}",
            partial(case, experts=experts, with_bias=with_bias, attrs=attrs),
        )


@dataclass(frozen=True)
class Experts:
    """A mixture: what its router picks, its sizes, and how its weights are stored."""

    count: int
    picks: int
    size: int
    inner: int
    kind: str = "silu"
    plain: bool = False
    with_bias: bool = False
    format: Format | None = None  # of gate and up; None for plain numbers
    down_format: Format | None = None
    attrs: dict[str, Attr] = field(default_factory=dict)

    @property
    def name(self) -> str:
        stored = f"-{self.format}" if self.format else ""
        sizes = f"{self.count}-{self.picks}-{self.size}x{self.inner}{stored}"
        return f"{'plain-' if self.plain else ''}experts-{sizes}"

    @property
    def first_rows(self) -> int:
        """Rows of the first matrix of an expert."""
        return self.inner if self.plain else 2 * self.inner

    def case(self, s: Sketch, dtype: DType) -> None:
        logits, x = s.rows("logits", self.count), s.rows("x", self.size, form=dtype)
        shares = s.call(
            "route",
            logits,
            scoring="softmax",
            top_k=self.picks,
            normalise=True,
            out="shares",
        )
        gate_up = self._stack(s, "gate_up", self.first_rows, self.size, dtype, self.format)
        down = self._stack(s, "down", self.size, self.inner, dtype, self.down_format)
        biases = [
            s.weight(f"{name}_bias", samples.normal(s.drawn(name), self.count, rows))
            if self.with_bias
            else None
            for name, rows in (("gate_up", self.first_rows), ("down", self.size))
        ]
        attrs = {"kind": self.kind, "top_k": self.picks, "plain": self.plain, **self.attrs}
        inner = s.call(
            "expert_gate", x, shares, gate_up, biases[0],
            out="inner", form="float32" if self.down_format else dtype,
            shape=(self.picks, self.inner), **attrs,
        )  # fmt: skip
        s.call(
            "expert_sum", inner, shares, down, biases[1],
            out="sum", shape=(self.size,), top_k=self.picks,
        )  # fmt: skip

    def _stack(
        self, s: Sketch, name: str, rows: int, columns: int, dtype: DType, form: Format | None
    ) -> str:
        drawn = samples.normal(s.drawn(name), self.count, rows, columns) / columns**0.5
        if form is not None and form.is_two_level:
            whole = drawn_rows(form, self.count * rows, columns, s.drawn(name))
            return s.weight(f"experts.{name}", whole.unflatten((self.count, rows)), form)
        if form is not None:
            return s.weight(
                f"experts.{name}", integers(s.drawn(f"{name}_zeros"), drawn, form), form
            )
        return s.weight(f"experts.{name}", drawn.to(getattr(torch, dtype)))


CLAMPED = {"kind": "clamped", "with_bias": True, "attrs": {"limit": 0.8}}
ALONE = {"kind": "relu2", "plain": True, "with_bias": True}
# Panels that are filled and that are not, an odd K, one expert, all of them, more than rows, and so
# many picks that rows are sorted in several blocks.
PLAIN = (
    Experts(4, 2, 64, 64),
    Experts(3, 1, 200, 27, **CLAMPED),
    Experts(5, 5, 40, 96, kind="gelu"),
    Experts(33, 4, 36, 20, kind="gelu_tanh", with_bias=True),
    Experts(70, 64, 16, 12),
    Experts(5, 2, 36, 54, **ALONE),
)


def integers(rng: torch.Generator, drawn: Tensor, form: Format) -> Scaled:
    """The matrices in that format; zeros are of its whole range, whatever they do to the values."""
    found = quantize_rows(drawn, replace(form, zeros=False))
    if not form.zeros:
        return found
    bound = 2 ** (form.bits - 1)
    groups = found.scales if found.multipliers is None else found.multipliers
    zeros = torch.randint(-bound, bound, groups.shape, generator=rng, dtype=torch.int8)
    if found.multipliers is None:
        return replace(found, zeros=zeros)
    multipliers = multipliers_beside_zeros(found.multipliers, form.bits)
    zeros = zeros_beside(multipliers, zeros, form.bits)
    return replace(found, multipliers=multipliers, zeros=zeros)


INTEGERS = (
    Experts(4, 2, 128, 64, format=int8(64), down_format=int8(64)),
    Experts(6, 3, 160, 96, format=int4(32, 32), down_format=int4(32, 32), **CLAMPED),
    Experts(9, 2, 256, 128, format=int4(32, 128), down_format=int4(32, 128)),
    Experts(3, 3, 80, 40, format=int8(80), down_format=int8(40), with_bias=True),
    Experts(2, 1, 256, 384, format=int4(32, 64), down_format=int8(384)),
    Experts(5, 2, 100, 40, format=int4(32, 128), down_format=int4(32, 128)),
    Experts(5, 2, 72, 72, format=int8(32), down_format=int8(64)),
    Experts(5, 3, 96, 72, format=with_zeros(int4(32, 32)), down_format=with_zeros(int4(32, 32))),
    Experts(4, 1, 128, 128, format=with_zeros(int4(64, 64)), down_format=with_zeros(int8(64))),
    Experts(5, 2, 160, 72, format=with_zeros(int4(32, 128)), down_format=with_zeros(int4(32, 64))),
    Experts(
        *(4, 2, 256, 128),
        format=with_minimums(4, 32, 128),
        down_format=with_bytes(in_bits(6, 16, 128)),
    ),
    Experts(3, 2, 100, 48, format=int4(16, 16), down_format=with_zeros(int4(16, 16))),
    Experts(5, 2, 64, 128, format=int8(64), down_format=int8(64), **ALONE),
    Experts(4, 2, 96, 72, format=int4(32, 32), down_format=int4(32, 32), **ALONE),
)


def mixtures(dtype: DType) -> Iterator[tuple[str, Case]]:
    for each in PLAIN:
        yield each.name, partial(each.case, dtype=dtype)


def integer_mixtures() -> Iterator[tuple[str, Case]]:
    for each in INTEGERS:
        yield each.name, partial(each.case, dtype="float32")
