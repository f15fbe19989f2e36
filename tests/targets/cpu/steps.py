"""The integer inputs of steps of several sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ingot.ops.steps import paged_step
from tests.targets.sketch import LIMITS


@dataclass(frozen=True)
class Step:
    """The integer inputs of a step."""

    inputs: Mapping[str, Tensor]
    num_pages: int

    @property
    def num_rows(self) -> int:
        return len(self.inputs["tokens"])

    @property
    def num_sequences(self) -> int:
        return len(self.inputs["spans"])

    def sequence(self, index: int) -> tuple[Step, slice]:
        """The step of one sequence alone, and where its rows were."""
        begin, end, first = self.inputs["spans"][index].tolist()
        rows = slice(begin, end)
        pages, record = self.inputs["page_table"][index], self.inputs["records"][index]
        return self.part(rows, pages, first + end - begin, record), rows

    def part(self, rows: slice, pages: Tensor, context: int, record: Tensor | None = None) -> Step:
        """A step of these rows, which end a sequence of that context; by default the first one's
        record is theirs."""
        inputs = {n: self.inputs[n][rows] for n in ("tokens", "positions", "slots")}
        count = len(inputs["tokens"])
        inputs["spans"] = torch.tensor([[0, count, context - count]])
        inputs["records"] = self.inputs["records"][:1] if record is None else record.view(1)
        inputs |= {"page_table": pages.view(1, -1), "logit_rows": torch.arange(count)}
        return replace(self, inputs=inputs)


def make_step(rng: torch.Generator, sequences: list[tuple[int, int]], vocabulary: int = 1) -> Step:
    """A step of sequences given as (rows, context); some slots are -1, all rows are selected, the
    first token is the last of the vocabulary, and there are as many records as pages."""
    inputs, num_pages = paged_step(rng, sequences, LIMITS.page_size)
    count = len(inputs["tokens"])
    inputs["slots"][torch.rand(count, generator=rng) < 0.1] = -1
    inputs["tokens"] = torch.randint(0, vocabulary, (count,), generator=rng)
    inputs["tokens"][0] = vocabulary - 1
    inputs["logit_rows"] = torch.randperm(count, generator=rng)
    last = num_pages - 1 - torch.arange(len(sequences))
    return Step({**inputs, "records": last}, num_pages)
