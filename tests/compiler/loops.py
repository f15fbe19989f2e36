"""A small model with five layers alike, and what a model may do with its layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(8, 8))

    def forward(
        self, x: Tensor, *, by: float = 1.0, more: Tensor | None = None, both: bool = False
    ) -> Any:
        x = torch.relu(x @ self.w) * by
        y = x if more is None else x + more
        return (y, x) if both else y


class Loop(nn.Module):
    """Five layers, and a function that calls them."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.embed = nn.Embedding(31, 8)
        self.layers = nn.ModuleList(Layer() for _ in range(5))
        self.body = body

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        x = self.embed(input_ids) + positions[..., None]
        return self.body(self.layers, x) @ self.embed.weight.t()


def plain(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def backwards(layers, x):
    return plain(list(layers)[::-1], x)


def by_length(layers, x):
    for index in range(len(layers)):
        x = layers[index](x)
    return x


def by_number(layers, x):
    for index in range(5):
        x = layers[index](x)
    return x


def all_but_one(layers, x):
    return plain(list(layers)[:-1], x)


def twice(layers, x):
    for layer in layers:
        x = layer(layer(x))
    return x


def all_twice(layers, x):
    return plain(layers, plain(layers, x))


def index_inside(layers, x):
    for index, layer in enumerate(layers):
        x = layer(x, by=index + 2.0)
    return x


def index_outside(layers, x):
    for index, layer in enumerate(layers):
        x = layer(x) * (index + 2.0)
    return x


def last_apart(layers, x):
    for layer in layers:
        x = layer(x, by=3.0 if layer is layers[-1] and len(layers) > 2 else 1.0)
    return x


def third_apart(layers, x):
    for index, layer in enumerate(layers):
        x = layer(x, more=x if index == 2 else None)
    return x


def first_for_all(layers, x):
    first = x = layers[0](x)
    for layer in list(layers)[1:]:
        x = layer(x, more=first)
    return x


def another_of_first_for_all(layers, x):
    x, first = layers[0](x, more=x, both=True)
    for layer in list(layers)[1:]:
        x = layer(x, more=first)
    return x


def whole_slices(layers, x):
    return plain(layers, x[:, :])


def input_for_all(layers, x):
    table = x * 2.0
    for layer in layers:
        x = layer(x, more=table)
    return x


def from_two_before(layers, x):
    before, last = x, x
    for layer in layers:
        before, last = last, layer(last, more=before)
    return last


def summed(layers, x):
    return sum(layer(x) for layer in layers)


def other_weights(layers, x):
    for layer in layers:
        x = layer(x, more=x @ layers[0].w)
    return x


def two_results(layers, x):
    more = x
    for layer in layers:
        x, more = layer(x, more=more, both=True)
    return x - more


def in_place(layers, x):
    for layer in layers:
        x = layer(x, more=x).add_(1.0)
    return x


def length_of_last(layers, x):
    for layer in layers:
        x = layer(x, by=2.0 if layer is layers[-1] and len(layers) > 2 and x.shape[1] > 5 else 1.0)
    return x


def eight_in_last(layers, x):
    for layer in layers:
        x = layer(x, more=x[:, :8] if layer is layers[-1] and len(layers) > 2 else x)
    return x


def model(body: Callable[[Any, Tensor], Tensor]) -> Loop:
    with torch.device("meta"):
        return Loop(body)


REPEATED = [
    another_of_first_for_all,
    plain,
    by_length,
    twice,
    whole_slices,
    input_for_all,
    two_results,
]
NOT_REPEATED = [
    backwards,
    by_number,
    all_but_one,
    all_twice,
    index_inside,
    index_outside,
    last_apart,
    third_apart,
    first_for_all,
    from_two_before,
    summed,
    other_weights,
    in_place,
]
NOT_EXPORTED = [length_of_last, eight_in_last]
