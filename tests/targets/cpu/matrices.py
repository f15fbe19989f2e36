"""Weights in integers, and what is done with each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ingot.artifact.formats import BYTE, CODED, INTEGERS, SIX_BITS, Format, rounded_rows
from ingot.ops.scaled import Scaled
from tests.support import samples
from tests.targets.cpu.units import Case
from tests.targets.sketch import STEP, Sketch

HEAD = 64


@dataclass(frozen=True)
class Matrix:
    """A weight in integers [outputs, inputs]; a product reads it, and an embedding too."""

    form: Format
    inputs: int
    outputs: int
    extended: bool = False  # by a bias, and the residual of another product
    result_block: int = 0  # products with gates read it; one is rounded in such blocks
    is_heads: bool = False
    capped: bool = False
    fine: bool = False  # it multiplies int16

    @property
    def name(self) -> str:
        return f"{self.form}-{self.outputs}x{self.inputs}{'-fine' * self.fine}"

    @property
    def rows(self) -> Format:
        """The format of what it multiplies."""
        return rounded_rows(self.form.block, "int16" if self.fine else "int8")

    @property
    def groups(self) -> int:
        """Groups of a row."""
        return -(-self.inputs // self.form.group)

    def drawn(self, rng: torch.Generator) -> Scaled:
        """As `drawn_rows` says."""
        return drawn_rows(self.form, self.outputs, self.inputs, rng)

    def case(self, s: Sketch) -> None:
        weight = s.weight("weight", self.drawn(s.drawn("weight")), self.form)
        if self.fine:
            s.fine.add(weight)
        bias = s.vector("bias", self.outputs) if self.extended else None
        x = s.rows("x", self.inputs)
        out = s.call("linear", x, weight, bias)
        if self.extended:
            made = s.call("linear", x, weight, bias, out="made")
            s.call("add", made, s.rows("residual", self.outputs), out="sum")
        if self.capped:
            made = s.call("linear", x, weight, bias, out="uncapped")
            s.call("soft_cap", made, cap=0.5, out="capped")
        s.call("embedding", "tokens", weight, out="row")
        if self.result_block:
            self._gates(s, x, weight, bias)
        if self.is_heads:
            self._heads(s, x, weight, out)

    def _gates(self, s: Sketch, x: str, weight: str, bias: str | None) -> None:
        size = self.outputs // 2
        for name in ("gated", "rounded"):
            made = s.call("linear", x, weight, bias, out=f"{name}_product")
            halves = (
                s.view(f"{name}_{part}", made, first, size)
                for part, first in (("gate", 0), ("up", size))
            )
            made = s.call("gate", *halves, kind="silu", out=name)
        form = replace(self.rows, block=self.result_block, group=self.result_block)
        s.call("cast", made, out="rounded_integers", form=form)
        for name in ("activated", "smooth"):
            made = s.call("linear", x, weight, bias, out=f"{name}_product")
            made = s.call("activation", made, kind="gelu", out=name)
        s.call("cast", made, out="smooth_integers", form=form)

    def _heads(self, s: Sketch, x: str, weight: str, out: str) -> None:
        made = s.call("linear", x, weight, out="heads")
        queries = self.outputs // HEAD - 2
        q = s.view("q", made, 0, queries, HEAD)
        k, v = (s.view(n, made, (queries + i) * HEAD, 1, HEAD) for i, n in enumerate("kv"))
        table, caches = s.rows("table", HEAD), s.caches(1, HEAD)
        q, k = (s.call("rope", h, table, out=f"turned_{n}") for n, h in (("q", q), ("k", k)))
        s.call("kv_write", k, v, "slots", *caches)
        # Scores of some units: float32 holds a difference of two large ones too coarsely.
        s.call("paged_attention", q, *caches, *STEP, scale=2.0**-13, out="attended")


def drawn_rows(form: Format, rows: int, columns: int, rng: torch.Generator) -> Scaled:
    """Values of the whole range; scales are of float16 and of either sign, the first is 0."""

    def integers(bounds: tuple[int, int], count: int) -> Tensor:
        return torch.randint(*bounds, (rows, count), generator=rng).to(torch.int8)

    def scales(largest: float) -> Tensor:
        drawn = samples.normal(rng, rows, form.blocks_of(columns)) / largest
        drawn[0, 0] = 0
        return drawn.half().float()

    groups = -(-columns // form.group)
    values = integers((0, 16) if form.codes else values_of(form), columns)
    if form.codes:
        values = torch.tensor(CODED, dtype=torch.int8)[values.int()]
    low, high = multipliers_of(form)
    multipliers = integers((low, high), groups) if form.has_multipliers else None
    zeros = integers(zeros_of(form), groups) if form.zeros else None
    if multipliers is not None and zeros is not None and not form.minimums:
        multipliers = multipliers_beside_zeros(multipliers, form.bits)
        zeros = zeros_beside(multipliers, zeros, form.bits)
    bound = 128 if form.codes else 2 ** (form.bits - 1)
    whole = scales(bound * (high if form.has_multipliers else 1) * columns**0.5)
    minimums = scales(64 * columns**0.5) if form.minimums else None
    widths = {"block": form.block, "group": form.group}
    return Scaled(values, multipliers, whole, zeros, minimums, **widths)


def values_of(form: Format) -> tuple[int, int]:
    """The least integer, and the one after the largest; of codes those of bytes."""
    bits = 8 if form.codes else form.bits
    return (0, 1 << bits) if form.minimums else (-1 << (bits - 1), 1 << (bits - 1))


def multipliers_of(form: Format) -> tuple[int, int]:
    """The same of multipliers; beside zeros of a byte before `multipliers_beside_zeros`."""
    return {SIX_BITS: (0, 64), BYTE: (-128, 128)}.get(form.multiplier, (-8, 8))


def zeros_of(form: Format) -> tuple[int, int]:
    """The same of zeros; beside multipliers and no minimums before `zeros_beside`."""
    return (0, 64) if form.minimums else values_of(form)


def multipliers_beside_zeros(drawn: Tensor, bits: int) -> Tensor:
    """The least, the largest and all between, by drawn ones of -8..7."""
    most = 256 >> bits
    return ((drawn.short() + 8) * (most - 1) // 15 + 1).to(torch.int8)


def zeros_beside(multipliers: Tensor, drawn: Tensor, bits: int) -> Tensor:
    """Zeros that leave values times multipliers in -127..127: the least, the largest and all
    between, by drawn ones of the range of values."""
    bound, wide = 1 << (bits - 1), multipliers.short()
    least, most = (bound - 1) * wide - 127, 127 - bound * wide
    return (least + (drawn.short() + bound) * (most - least) // (2 * bound - 1)).to(torch.int8)


def int8(block: int) -> Format:
    return Format("int8", block, block, "float16")


def int4(group: int, block: int) -> Format:
    return in_bits(4, group, block)


def in_bits(bits: int, group: int, block: int) -> Format:
    return Format(INTEGERS[bits], block, group, "float16")


def with_zeros(form: Format) -> Format:
    return replace(form, zeros=True)


def with_minimums(bits: int, group: int, block: int) -> Format:
    """As in Q4_1, and with several groups as in Q4_K."""
    form = replace(in_bits(bits, group, block), minimums=True)
    return replace(form, zeros=True, multiplier=SIX_BITS) if block > group else form


def with_bytes(form: Format) -> Format:
    return replace(form, multiplier=BYTE)


def in_codes(form: Format) -> Format:
    return replace(form, codes=True)


# Those that also multiply int16.
FINE = (
    Matrix(int8(128), 300, 72, extended=True, capped=True),
    Matrix(int8(416), 416, 128, extended=True, result_block=32),
    Matrix(with_zeros(int8(64)), 192, 96, extended=True),
    Matrix(int4(32, 32), 288, 80, extended=True),
    Matrix(with_zeros(int4(32, 128)), 330, 72, extended=True),
    Matrix(with_zeros(int4(64, 128)), 256, 256, result_block=128, is_heads=True),
    Matrix(with_zeros(in_bits(6, 32, 128)), 330, 40),
    Matrix(with_minimums(4, 32, 128), 330, 40),
    Matrix(with_bytes(in_bits(6, 16, 128)), 256, 40),
)
# Sizes that fill panels and that do not; groups of every size, and one a row; many groups; rows
# whose last block is short, by whole quads and within one, or is the only one; a row so long that
# few stay in the cache.
MATRICES = (
    Matrix(int8(32), 256, 96, capped=True),
    Matrix(int8(128), 300, 72, extended=True, capped=True),
    Matrix(int8(64), 1, 40),
    Matrix(int8(50), 50, 33),
    Matrix(int4(32, 128), 330, 72, extended=True, capped=True),
    Matrix(int4(64, 128), 1000, 40),
    Matrix(int4(128, 128), 211, 40, capped=True),
    Matrix(int8(40), 40, 33),
    Matrix(int8(416), 416, 128, extended=True, result_block=32),
    Matrix(int4(32, 32), 288, 80, extended=True, capped=True),
    Matrix(int4(32, 64), 2112, 40),
    Matrix(int4(32, 128), 1664, 72, extended=True),
    Matrix(int4(64, 128), 256, 256, result_block=128, is_heads=True),
    Matrix(int4(128, 128), 384, 200),
    Matrix(with_zeros(int4(128, 128)), 640, 256, extended=True, result_block=128, is_heads=True),
    Matrix(with_zeros(int4(32, 32)), 288, 72, capped=True),
    Matrix(with_zeros(int8(64)), 192, 96, extended=True),
    Matrix(with_zeros(int4(32, 128)), 330, 72, extended=True, capped=True),
    Matrix(with_zeros(int4(64, 128)), 256, 256, result_block=128, is_heads=True),
    Matrix(with_zeros(int4(32, 64)), 2112, 40),
    Matrix(with_zeros(in_bits(6, 32, 128)), 330, 72, extended=True, capped=True),
    Matrix(with_zeros(in_bits(5, 32, 128)), 330, 72, extended=True, capped=True),
    Matrix(with_zeros(in_bits(6, 64, 128)), 256, 256, result_block=128, is_heads=True),
    Matrix(with_zeros(in_bits(5, 32, 64)), 2112, 40),
    Matrix(in_bits(6, 32, 32), 288, 72, extended=True),
    Matrix(with_zeros(in_bits(5, 32, 32)), 288, 40),
    Matrix(int4(32, 128), 96, 40),
    Matrix(int8(128), 10240, 33),
    *(replace(each, fine=True) for each in FINE),
    Matrix(with_minimums(4, 32, 32), 288, 72),
    Matrix(with_minimums(5, 32, 32), 160, 40),
    Matrix(with_minimums(4, 32, 128), 330, 72),
    Matrix(with_minimums(5, 32, 128), 256, 256, extended=True, result_block=128, is_heads=True),
    Matrix(with_minimums(4, 16, 128), 330, 40),
    Matrix(with_bytes(in_bits(6, 16, 128)), 330, 72, capped=True),
    Matrix(with_bytes(in_bits(4, 16, 128)), 256, 40),
    Matrix(in_codes(int4(32, 32)), 288, 40),
    Matrix(with_bytes(in_codes(int4(32, 128))), 640, 72),
    Matrix(int4(16, 16), 330, 72, extended=True, capped=True),
    Matrix(int4(16, 16), 16, 40),
    Matrix(with_zeros(int4(16, 16)), 256, 256, result_block=128, is_heads=True),
    Matrix(with_zeros(int4(16, 16)), 1000, 40),
    Matrix(in_bits(6, 16, 16), 336, 40),
    Matrix(with_zeros(in_bits(5, 16, 16)), 330, 72),
    Matrix(with_zeros(int4(16, 16)), 330, 72, fine=True),
)


def integers() -> Iterator[tuple[str, Case]]:
    for each in MATRICES:
        yield each.name, each.case
