"""A side that is made up: the logits of a position follow from its token alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ingot.compare.forms import Task
from ingot.compare.side_parts import greedy_by_logits


class TableSide:
    """Gives row t of a table [V, V] after token t; counts how often it was asked."""

    what = "a table"
    task: Task = "generate"
    tokenizer = None

    def __init__(
        self,
        table: npt.NDArray[np.float32],
        *,
        name: str = "table",
        token_cost: int = 1,
        max_model_len: int | None = 16,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        self.table, self.name, self.token_cost = table, name, token_cost
        self.vocab_size = table.shape[1]
        self.max_model_len, self.eos_token_ids = max_model_len, eos_token_ids
        self.num_greedy = 0

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        return self.table[list(tokens)]

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        self.num_greedy += count
        return greedy_by_logits(self.logits, tokens, count)

    def close(self) -> None:
        pass


def successor_table(size: int = 8) -> npt.NDArray[np.float32]:
    """After token t comes t + 1, by a margin of 2."""
    table = np.zeros((size, size), np.float32)
    table[np.arange(size), (np.arange(size) + 1) % size] = 2.0
    return table
