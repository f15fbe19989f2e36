"""Attention over a cache of which everything that may not be read is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ingot.artifact.formats import Format, rounded_rows
from ingot.artifact.plan import Limits, Plan
from ingot.ops.dtypes import NAMES
from ingot.ops.paged_attention import reference
from ingot.ops.scaled import Operand, Scaled, round_to_int8
from ingot.targets.cuda.calls_heads import CALLS
from tests.targets.cuda.runs import run
from tests.targets.sketch import STEP, Sketch

LIMITS = Limits(
    max_model_len=1024, max_num_seqs=24, max_num_batched_tokens=64, max_logit_rows=64, page_size=16
)
NOWHERE = 2**30  # a page that no cache has


@dataclass(frozen=True)
class Shape:
    """Of an attention."""

    kv_heads: int = 1
    group: int = 2
    size: int = 16
    page: int = 16
    window: int = 0
    softcap: float = 0.0
    dtype: torch.dtype = torch.bfloat16
    in_int8: bool = False
    sinks: float | None = None  # about how large they are; None for none

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def weights(self) -> dict[str, Tensor]:
        """A sink of every head, above and below that size in turn."""
        if self.sinks is None:
            return {}
        return {
            "sinks": self.sinks + torch.tensor([3.0, -2.0, 0.5]).repeat(self.heads)[: self.heads]
        }

    def plan(self) -> Plan:
        s = Sketch(LIMITS)
        form = rounded_rows(self.size) if self.in_int8 else Format(NAMES[self.dtype])
        q = s.rows("q", self.heads, self.size, form=NAMES[self.dtype])
        caches = s.caches(self.kv_heads, self.size, form, self.page)
        sinks = (s.weight(name, value) for name, value in self.weights.items())
        s.call(
            "paged_attention", q, *caches, *STEP, *sinks, scale=self.size**-0.5,
            window=self.window, softcap=self.softcap, form=NAMES[self.dtype],
        )  # fmt: skip
        return s.plan()


@dataclass(frozen=True)
class Attended:
    """A cache of one long sequence, and queries of every place in it."""

    shape: Shape
    q: Tensor  # [places, heads, size]
    pages: list[int]
    caches: tuple[Operand, ...]

    @classmethod
    def drawn(cls, shape: Shape, places: int, spread: float = 1.0) -> Attended:
        """`spread`: of the scores; with a large one few keys have all the weight."""
        rng = torch.Generator().manual_seed(places)
        count = -(-places // shape.page)
        pages = (torch.randperm(count + 1, generator=rng)[:count]).tolist()
        cache_shape = (count + 1, shape.kv_heads, shape.page, shape.size)
        numbers = (torch.randn(cache_shape, generator=rng) for _ in range(2))
        caches = [
            round_to_int8(x, shape.size) if shape.in_int8 else x.to(shape.dtype) for x in numbers
        ]
        q = torch.randn(places, shape.heads, shape.size, generator=rng) * spread
        return cls(shape, q.to(shape.dtype), pages, (caches[0], caches[1]))

    def run(self, *spans: tuple[int, int], padding: int = 0) -> list[Tensor]:
        """Results [rows, heads, size] of sequences that have rows of places [first, end).

        All share the cache. After them come as many sequences and rows of padding.
        """
        counts = [end - first for first, end in spans]
        begins = [sum(counts[:n]) for n in range(len(counts))]
        rows = sum(counts)
        table = [(b, b + c, first) for b, c, (first, _) in zip(begins, counts, spans, strict=True)]
        table += [(rows, rows, 0)] * padding
        q = torch.cat([*(self.q[first:end] for first, end in spans), *[_nan(self.q[:1])] * padding])
        plan = self.shape.plan()
        memory = run(
            plan,
            CALLS,
            _inputs(len(q), table, [self._row(*span) for span in spans]),
            self.shape.weights,
            {"q": q, **self._poisoned(spans)},
        )
        out = memory.read(plan.buffer("out"))
        untouched = out[rows:].contiguous().view(torch.uint8)
        assert bool((untouched == 0xCB).all()), "a row of padding was written"
        return list(out[:rows].split(counts))

    def expected(self, first: int, end: int) -> Tensor:
        """The same of one sequence, by the reference."""
        spans, table = torch.tensor([[0, end - first, first]]), torch.tensor([self.pages])
        shape = self.shape
        made = reference(
            self.q[None, first:end], *self.caches, spans, table, shape.size**-0.5,
            shape.window, shape.softcap, **shape.weights, out_dtype=shape.dtype,
        )  # fmt: skip
        return made[0]

    def _row(self, first: int, end: int) -> list[int]:
        """Of the page table; pages that no row of a span sees are not there."""
        low = self._low(first) // self.shape.page
        seen = self.pages[low : -(-end // self.shape.page)]
        row = [NOWHERE] * low + seen
        return row + [NOWHERE] * (LIMITS.max_pages_per_seq - len(row))

    def _low(self, first: int) -> int:
        return max(0, first - self.shape.window + 1) if self.shape.window else 0

    def _poisoned(self, spans: Sequence[tuple[int, int]]) -> dict[str, Operand]:
        """The caches, with NaN in all places that no span sees."""
        low, end = min(self._low(first) for first, _ in spans), max(end for _, end in spans)
        seen = torch.zeros(self._pages_and_places, dtype=torch.bool)
        for place in range(low, end):
            seen[self.pages[place // self.shape.page], place % self.shape.page] = True
        names = [buffer.name for buffer in self.shape.plan().of_kind("state")]
        return {
            name: _poisoned(x, seen[:, None, :, None])
            for name, x in zip(names, self.caches, strict=True)
        }

    @property
    def _pages_and_places(self) -> tuple[int, int]:
        return self.caches[0].shape[0], self.shape.page


def _poisoned(x: Operand, seen: Tensor) -> Operand:
    if isinstance(x, Scaled):
        return Scaled(x.values, None, torch.where(seen, x.scales, torch.nan))
    return torch.where(seen, x, torch.nan)


def _nan(x: Tensor) -> Tensor:
    return torch.full_like(x, torch.nan)


def _inputs(
    rows: int, spans: list[tuple[int, int, int]], table: list[list[int]]
) -> dict[str, Tensor]:
    nowhere = [[NOWHERE] * LIMITS.max_pages_per_seq] * (len(spans) - len(table))
    values = {
        **{name: [0] * rows for name in ("tokens", "positions", "slots")},
        "spans": spans,
        "page_table": table + nowhere,
        "logit_rows": [0],
    }
    return {name: torch.tensor(value, dtype=torch.int32) for name, value in values.items()}
