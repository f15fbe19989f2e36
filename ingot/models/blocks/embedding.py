"""Embedding of token ids or of positions."""

from __future__ import annotations

import torch
from torch.nn import functional

from ingot.models.blocks.block import Block
from ingot.models.blueprint import Blueprint


class Embedding(Block):
    """Rows of a table, times a factor: ids [1, T] -> [1, T, width]."""

    weight: torch.Tensor

    def __init__(self, blueprint: Blueprint, *, scale: float = 1.0) -> None:
        super().__init__(blueprint)
        self.scale = scale
        self.becomes = {"embedding": 1} | ({"mul": 1} if scale != 1.0 else {})

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = functional.embedding(ids, self.weight)
        return rows if self.scale == 1.0 else rows * self.scale
