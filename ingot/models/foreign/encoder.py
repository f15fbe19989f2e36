"""The plain module of a class of `transformers` that reads whole texts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ingot.models.blocks.encoder import Pool, make_activation
from ingot.models.foreign.build import bare_module, called, own_rows, renaming
from ingot.models.head_config import DenseConfig, HeadConfig
from ingot.models.weight_rules import Entry, Rows, Sums

BODY = "body"
WORDS, TYPES, PLACES = "word_embeddings", "token_type_embeddings", "position_embeddings"
POOLER = "pooler."  # what a class makes of the first token, beside the rows


@dataclass(frozen=True)
class PlainEncoder:
    """The module of a class, and what its tensors say.

    Attributes:
        body: the class's own module.
        rows: parameters that are not read as a checkpoint stores them.
        renamed: which of its parameters a tensor of a checkpoint is.
        types: sorts of tokens that its embeddings know.
        longest: positions that it has embeddings for; 0 where it has none.
    """

    body: Any
    rows: dict[str, Entry]
    renamed: Callable[[str], str]
    types: int
    longest: int


class TextModel(nn.Module):
    """A class's module, what its rows are pooled to, and layers upon that.

    input_ids and positions int64 [1, T] -> float32 [1, T, C] or [1, 1, C]; scores of the labels of
    a text, which the class pools itself, [1, labels].
    """

    def __init__(self, body: nn.Module, head: HeadConfig, row_size: int) -> None:
        super().__init__()
        self.body, self.scores = body, bool(head.labels)
        self.pool = Pool(head.pooling) if head.pooling and not head.labels else nn.Identity()
        columns, layers = head.read(row_size), []
        for layer in head.layers:
            layers.append(Dense(columns, layer))
            columns = layer.size
        self.head = nn.ModuleList(layers)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        out = run(self.body, input_ids, positions)
        rows = self.pool((out.logits if self.scores else out.last_hidden_state).float())
        for layer in self.head:
            rows = layer(rows)
        return rows  # type: ignore[no-any-return]


class Dense(nn.Module):
    """act(dense(x)): [1, 1, C] -> [1, 1, size]."""

    def __init__(self, columns: int, layer: DenseConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(columns, layer.size, bias=layer.bias)
        self.activation = make_activation(layer.activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.dense(x))  # type: ignore[no-any-return]


class NoTypes(nn.Module):
    """Stands for embeddings of sorts of tokens that are part of others."""

    def forward(self, types: Tensor) -> Tensor:
        return torch.zeros((1, 1, 1), device=types.device)


def run(body: nn.Module, input_ids: Tensor, positions: Tensor) -> Any:
    """What a class gives for tokens at positions that count from 0."""
    types = torch.zeros_like(input_ids)
    return called(body, input_ids, position_ids=positions, token_type_ids=types)


def row_size_of(body: nn.Module) -> int:
    """Width of the rows that a class gives; 0 where it cannot be run on the meta device."""
    ids = torch.zeros(1, 3, dtype=torch.int64, device="meta")
    try:
        with torch.no_grad():
            return int(run(body, ids, ids).last_hidden_state.shape[-1])
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return 0  # exporting the module tells what is wrong with it


def plain_encoder(
    made: type[Any], config: Any, *, max_model_len: int, headless: bool
) -> PlainEncoder:
    """The module of a class, its parameters on meta; headless: checkpoints have a head, too.

    Embeddings of sorts of tokens become part of those of positions: type t at position p has row
    t * positions + p. In a model without such positions every token is of sort 0.
    """
    takes = inspect.signature(made.__init__).parameters
    given = {"add_pooling_layer": False} if "add_pooling_layer" in takes else {}
    body = bare_module(made, config, max_model_len, **given)
    state = body.state_dict()
    rows: dict[str, Entry] = dict(own_rows(body))
    types, longest = 1, 0
    for path, part in list(body.named_modules()):
        if isinstance(getattr(part, PLACES, None), nn.Embedding):
            longest = skip_padding(path, part, rows)
        if isinstance(getattr(part, TYPES, None), nn.Embedding):
            types = max(types, join_types(path, part, rows))
    renamed = respelling(body, state, pooler=not given, headless=headless)
    return PlainEncoder(body.requires_grad_(False), rows, renamed, types, longest)


def skip_padding(path: str, part: Any, rows: dict[str, Entry]) -> int:
    """Lets positions count from 0 where a class counts from behind that of padding, as RoBERTa
    does; gives how many there are."""
    table, name = part.position_embeddings, joined(path, PLACES)
    if hasattr(part, "create_position_ids_from_input_ids"):
        skipped = int(part.padding_idx) + 1
        table.weight = nn.Parameter(table.weight[skipped:].detach())
        rows[name] = Rows(name, skip=skipped)
    return int(table.weight.shape[0])


def join_types(path: str, part: Any, rows: dict[str, Entry]) -> int:
    """Adds the embeddings of sorts of tokens to those of positions, or else the first of them to
    those of words; gives how many sorts there are then."""
    types, name = part.token_type_embeddings.weight, joined(path, TYPES)
    count = types.shape[0]
    if isinstance(getattr(part, PLACES, None), nn.Embedding):
        table, into = part.position_embeddings, joined(path, PLACES)
        outer = Rows(name)
    elif isinstance(getattr(part, WORDS, None), nn.Embedding):
        table, into = part.word_embeddings, joined(path, WORDS)
        outer, count = Rows(name, spare=count - 1), 1
    else:
        return 1
    if types.shape[1] != table.weight.shape[1]:
        return 1
    size, columns = table.weight.shape
    table.weight = nn.Parameter(table.weight.new_empty(count * size, columns))
    inner = rows.get(into, Rows(into))
    assert isinstance(inner, Rows), "a table of embeddings is some rows of a tensor"
    rows[into] = Sums(outer, inner, count)
    part.token_type_embeddings = NoTypes()
    return int(count)


def joined(path: str, name: str) -> str:
    """The weight of a part of a module."""
    return f"{path}.{name}.weight" if path else f"{name}.weight"


def respelling(
    body: Any, state: Mapping[str, Tensor], *, pooler: bool, headless: bool
) -> Callable[[str], str]:
    """As `renaming`, for a class that is built without its pooler or another class's head, which a
    checkpoint may have, and for layers that lie in folders of their own."""
    renamed, prefix = renaming(body, state), f"{body.base_model_prefix}."

    def respelled(name: str) -> str:
        if "/" in name:
            return name
        new = renamed(name)
        if new in state:
            return new
        of_pooler = not pooler and new.removeprefix(prefix).startswith(POOLER)
        of_head = headless and not name.startswith(prefix)
        return "" if of_pooler or of_head else new

    return respelled
