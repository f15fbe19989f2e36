"""A model that reads whole texts over a padded batch, as other exports of such models take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ingot.artifact.pooler import Pooler
from ingot.artifact.traits import Role
from ingot.onnx.batched import BATCH, OP_NAMES, TOKENS, Batched, Run, Shape
from ingot.ops import OPS

MASK, TYPES, BEFORE = "attention_mask", "token_type_ids", "prompt_length"
ROWS, VECTORS, LOGITS = "last_hidden_state", "sentence_embedding", "logits"
OF_TOKENS = "token_embeddings"
LEAST_LENGTH = 1e-12  # of a vector that is divided by its length
LOWEST = torch.finfo(torch.float32).min


class Encoder(Batched):
    """input_ids, attention_mask, and where tokens are of two sorts token_type_ids, int64 [B, T] ->
    last_hidden_state [B, T, C] and sentence_embedding [B, W], or what `names_of` tells; all
    float32.

    The mask is 0 for padding, on either side. Where rows of prompts are not pooled, prompt_length
    int64 [B] tells how many tokens they have. The graph gives a pooled row [1, 1, W], or a row for
    each token. The others are as of `Batched`.
    """

    def __init__(self, pooler: Pooler, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.pooler = pooler
        names = ("input_ids", MASK, *((TYPES,) if pooler.types > 1 else ()))
        ids: Shape = (BATCH, TOKENS)
        before: dict[str, Shape] = {} if pooler.include_prompt else {BEFORE: (BATCH,)}
        self.inputs = dict.fromkeys(names, ids) | before
        self.output_names = names_of(pooler)

    def outputs(self, given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        ids, mask = given["input_ids"], given[MASK]
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        if TYPES in given:
            positions = positions + given[TYPES] * self.pooler.type_stride
        run = TextRun(self, given)
        made = run.run(ids.reshape(1, -1), positions.reshape(1, -1))[0]
        if not self.pooler.pooling:
            made = made.reshape(*ids.shape, -1)
        if self.pooler.normalize:
            made = made / made.norm(dim=-1, keepdim=True).clamp(min=LEAST_LENGTH)
        return (run.rows, made) if ROWS in self.output_names else (made,)


def names_of(pooler: Pooler) -> list[str]:
    """The outputs: labels have logits, and vectors follow the rows that they are pooled from,
    unless those are as wide as the vocabulary. A model that pools nothing has vectors of tokens."""
    if pooler.labels:
        return [LOGITS]
    if not pooler.pooling:
        return [OF_TOKENS]
    return [VECTORS] if pooler.sparse else [ROWS, VECTORS]


class TextRun(Run):
    """A run that pools the rows of each text; `rows` are those that it pooled, [B, T, C]."""

    rows: Tensor

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        op = OPS.get(OP_NAMES.get(target, ""))
        if op is None or not op.traits.arguments(Role.CHOSEN):  # what pools chooses rows
            return super().call_function(target, args, kwargs)
        given = op.bind(*args, **kwargs)
        self.rows = given.x.reshape(*self.batch, -1)
        places = self.given[MASK].cumsum(1)  # from 1 on
        seen = self.given[MASK] != 0
        if BEFORE in self.given:
            seen = seen & (places > self.given[BEFORE][:, None])
        return pooled(self.rows, seen, places, given.how)[None]


def pooled(rows: Tensor, seen: Tensor, places: Tensor, how: str) -> Tensor:
    """rows [B, T, C], seen bool [B, T], places int64 [B, T] -> [B, C]: of each text one row of
    those that are seen. Where they are weighted, each counts as often as its place says; see
    `ingot.ops.pool`."""
    if how == "max":
        return torch.where(seen[:, :, None], rows, LOWEST).amax(1)
    if how in ("first", "last"):
        place = place_of(seen, how)
        return rows.gather(1, place[:, None, None].expand(-1, 1, rows.shape[2]))[:, 0]
    counts = places if how == "weighted_mean" else torch.ones_like(places)
    weights = torch.where(seen, counts, 0).float()[:, :, None]
    total = (torch.where(seen[:, :, None], rows, 0.0) * weights).sum(1)
    if how == "sum":
        return total
    number = weights.sum(1).clamp(min=1)
    return total / (number.sqrt() if how == "mean_sqrt" else number)


def place_of(seen: Tensor, how: str) -> Tensor:
    """seen bool [B, T] -> int64 [B]: where the first or the last token of each text is."""
    places = torch.arange(seen.shape[1], device=seen.device)[None]
    if how == "last":
        return torch.where(seen, places, 0).amax(1)
    return torch.where(seen, places, seen.shape[1] - 1).amin(1)
