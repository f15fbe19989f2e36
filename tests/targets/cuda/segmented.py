"""Attention over segments between rows of NaN, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ingot.artifact.plan import Limits, Plan
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
        s.call("segment_attention", *parts, "spans", scale=self.size**-0.5, **words, form=name)
        return s.plan()

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
        plan = self.plan()
        return run(plan, CALLS, inputs, {}, {"row": rows}).read(plan.buffer("out"))

    def expected(self, rows: Tensor, spans: Tensor) -> Tensor:
        """The same by the reference."""
        parts = rows[None].split([count * self.size for count in self.counts], -1)
        q, k, v = (x.unflatten(-1, (-1, self.size)) for x in parts)
        words = self.causal, self.window, self.softcap
        made = reference(q, k, v, spans, self.size**-0.5, *words, out_dtype=self.dtype)
        return made[0]


def between_nan(rows: Tensor, lengths: Sequence[int], index: int) -> tuple[Tensor, Tensor]:
    """Segment `index` with NaN in all rows of others, and its span."""
    spans = segments(lengths)[[index]]
    begin, end, _ = spans[0].tolist()
    poisoned = torch.full_like(rows, torch.nan)
    poisoned[begin:end] = rows[begin:end]
    return poisoned, spans
