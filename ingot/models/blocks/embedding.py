"""Token embedding."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Embedding(nn.Module):
    """Rows of a table: token ids [1, T] -> [1, T, hidden_size]."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(token_ids, self.weight)
