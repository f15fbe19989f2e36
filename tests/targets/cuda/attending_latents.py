"""Latent attention over a cache of which everything that may not be read is NaN."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ingot.artifact.formats import Format, rounded_rows
from ingot.artifact.plan import Plan
from ingot.ops.dtypes import NAMES
from ingot.ops.paged_attention import reference
from ingot.ops.scaled import round_to_int8
from tests.targets.cuda.attending import LIMITS, Attended, Shape
from tests.targets.sketch import STEP, Sketch


@dataclass(frozen=True)
class Rows(Shape):
    """Of rows of `size` columns that are keys, of which the first `values` are values."""

    size: int = 28
    values: int = 20

    @property
    def block(self) -> int:
        """Columns of a scale."""
        return math.gcd(self.size, self.values)

    def plan(self) -> Plan:
        s = Sketch(LIMITS)
        form = rounded_rows(self.block) if self.in_int8 else Format(NAMES[self.dtype])
        q = s.rows("q", self.heads, self.size, form=NAMES[self.dtype])
        cache = s.latent_cache(self.size, form, self.page)
        s.call(
            "paged_attention", q, cache, None, *STEP, scale=self.size**-0.5, window=self.window,
            softcap=self.softcap, value_size=self.values, form=NAMES[self.dtype],
            shape=(self.heads, self.values),
        )  # fmt: skip
        return s.plan()


@dataclass(frozen=True)
class AttendedRows(Attended):
    """A cache of one long sequence, and queries of every place in it."""

    shape: Rows

    @classmethod
    def of(cls, shape: Rows, places: int, spread: float = 1.0) -> AttendedRows:
        """`spread`: of the scores; with a large one few keys have all the weight."""
        rng = torch.Generator().manual_seed(places)
        count = -(-places // shape.page)
        pages = (torch.randperm(count + 1, generator=rng)[:count]).tolist()
        numbers = torch.randn(count + 1, 1, shape.page, shape.size, generator=rng)
        cache = round_to_int8(numbers, shape.block) if shape.in_int8 else numbers.to(shape.dtype)
        q = torch.randn(places, shape.heads, shape.size, generator=rng) * spread
        return cls(shape, q.to(shape.dtype), pages, (cache,))

    def expected(self, first: int, end: int) -> Tensor:
        spans, table = torch.tensor([[0, end - first, first]]), torch.tensor([self.pages])
        shape = self.shape
        return reference(  # type: ignore[no-any-return]
            self.q[None, first:end], self.caches[0], None, spans, table, shape.size**-0.5,
            shape.window, shape.softcap, value_size=shape.values, out_dtype=shape.dtype,
        )[0]  # fmt: skip
