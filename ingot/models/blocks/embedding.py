"""Embedding of token ids or of positions."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Embedding(nn.Module):
    """Rows of a table, times a factor: ids [1, T] -> [1, T, width]."""

    def __init__(self, num_rows: int, width: int, *, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, width))
        self.scale = scale
        self.becomes = {"embedding": 1} | ({"mul": 1} if scale != 1.0 else {})

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = functional.embedding(ids, self.weight)
        return rows if self.scale == 1.0 else rows * self.scale
