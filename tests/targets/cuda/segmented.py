"""Attention over segments between rows of NaN, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ingot.artifact.plan import Limits, Plan
from ingot.models.distances import Term
from ingot.ops import OPS
from ingot.ops.dtypes import NAMES
from ingot.targets.cuda.calls_attention import CALLS
from tests.ops.sample_inputs import segments
from tests.targets.cuda.runs import run
from tests.targets.sketch import Sketch

LIMITS = Limits(
    max_model_len=512, max_num_seqs=24, max_num_batched_tokens=512, max_logit_rows=64, page_size=16
)
reference = OPS["segment_attention"].reference
BUCKETS = 7
DISTANCES = (torch.arange(-12, 13) / 4).round() + 3


@dataclass(frozen=True)
class Shape:
    """Of an attention; queries, keys and values are columns of the same rows."""

    kv_heads: int = 2
    group: int = 1
    size: int = 16
    causal: bool = False
    window: int = 0
    softcap: float = 0.0
    dtype: torch.dtype = torch.bfloat16
    terms: tuple[Term, ...] = ()  # which depend on distances, of which those beyond 12 are one

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.kv_heads * self.group, self.kv_heads, self.kv_heads

    @property
    def columns(self) -> int:
        return sum(self.counts) * self.size

    def plan(self) -> Plan:
        s, name = Sketch(LIMITS), NAMES[self.dtype]
        row, first, parts = s.rows("row", self.columns, form=name), 0, []
        for part, count in zip("qkv", self.counts, strict=True):
            parts.append(s.view(part, row, first, count, self.size))
            first += count * self.size
        words = {"causal": self.causal, "window": self.window, "softcap": self.softcap}
        rows, weights = self.by_row(torch.zeros(1, self.columns)), self.weights
        added = [s.rows(n, *rows[n].shape[1:]) if n in rows else None for n in ("q_bias", "k_bias")]
        added += [s.weight(n, weights[n]) if n in weights else None for n in ("bias", "buckets")]
        s.call(
            "segment_attention", *parts, "spans", *added, scale=self.size**-0.5, **words, form=name
        )
        return s.plan()

    @property
    def weights(self) -> dict[str, Tensor]:
        """What heads have for distances, and the buckets of those."""
        rng = torch.Generator().manual_seed(3)
        table = torch.randn(self.counts[0], BUCKETS, generator=rng) * 3
        heads = {"bias": table} if "heads" in self.terms else {}
        return {**heads, "buckets": DISTANCES} if self.terms else {}

    def by_row(self, rows: Tensor) -> dict[str, Tensor]:
        """What queries and keys have for distances, which here follows from their own row."""
        made, seeds = {}, rows[:, :1].float() * 5
        for name, term, count in zip(
            ("q_bias", "k_bias"), ("queries", "keys"), self.counts, strict=False
        ):
            if term in self.terms:
                turns = torch.arange(count * BUCKETS) * (0.7 if term == "keys" else 1.0)
                made[name] = 3 * torch.sin(seeds + turns).unflatten(-1, (count, BUCKETS))
        return made

    def drawn(self, count: int, spread: float = 1.0) -> Tensor:
        """So many rows; `spread`: of all numbers."""
        rng = torch.Generator().manual_seed(count)
        return (torch.randn(count, self.columns, generator=rng) * spread).to(self.dtype)

    def run(self, rows: Tensor, spans: Tensor) -> Tensor:
        """Results [rows, heads, size]; what no segment has is left as it was."""
        names = ("tokens", "positions", "slots")
        inputs = {name: torch.zeros(len(rows), dtype=torch.int32) for name in names}
        inputs |= {"spans": spans.int(), "logit_rows": torch.zeros(1, dtype=torch.int32)}
        inputs["page_table"] = torch.zeros((len(spans), 1), dtype=torch.int32)
        plan, values = self.plan(), {"row": rows, **self.by_row(rows)}
        return run(plan, CALLS, inputs, self.weights, values).read(plan.buffer("out"))

    def expected(self, rows: Tensor, spans: Tensor) -> Tensor:
        """The same by the reference."""
        parts = rows[None].split([count * self.size for count in self.counts], -1)
        q, k, v = (x.unflatten(-1, (-1, self.size)) for x in parts)
        words = self.causal, self.window, self.softcap
        added = {name: x[None] for name, x in self.by_row(rows).items()} | self.weights
        made = reference(q, k, v, spans, self.size**-0.5, *words, **added, out_dtype=self.dtype)
        return made[0]


def between_nan(rows: Tensor, lengths: Sequence[int], index: int) -> tuple[Tensor, Tensor]:
    """Segment `index` with NaN in all rows of others, and its span."""
    spans = segments(lengths)[[index]]
    begin, end, _ = spans[0].tolist()
    poisoned = torch.full_like(rows, torch.nan)
    poisoned[begin:end] = rows[begin:end]
    return poisoned, spans
