"""Which layers are of one kind, and which stand for all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ingot.compiler.layers import Layers, alike, find_layers, first_of_each_kind
from ingot.models.blocks.constants import register_constant


class Layer(nn.Module):
    def __init__(self, **given) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.sizes = {"heads": [2, 4], "scale": 1.0}
        register_constant(self, "table", torch.ones(3))
        for name, value in given.items():
            setattr(self, name, value)


class Heir(Layer):
    pass


def with_hook() -> Layer:
    layer = Layer()
    layer.norm.register_forward_pre_hook(print)
    return layer


def with_constant() -> Layer:
    layer = Layer()
    register_constant(layer, "table", torch.tensor([1.0, 1.0, 2.0]))
    return layer


def test_layers_that_differ_only_in_weights_are_alike():
    one, other = Layer().to("meta"), Layer().to("meta")
    assert one.norm.weight is not other.norm.weight and alike(one, other)


@pytest.mark.parametrize(
    "other",
    [
        Heir(),
        Layer(more=None),
        Layer(sizes={"heads": [2, 5], "scale": 1.0}),
        Layer(sizes={"heads": [2, 4], "scale": 1}),
        Layer(sizes={"scale": 1.0, "heads": [2, 4]}),
        Layer(norm=nn.LayerNorm(4, eps=1e-3)),
        Layer(norm=nn.LayerNorm(5)),
        Layer(norm=nn.LayerNorm(4, bias=False)),
        Layer(norm=nn.LayerNorm(4).double()),
        Layer().eval(),
        with_hook(),
        with_constant(),
    ],
)
def test_layers_that_differ_in_anything_else_are_not(other):
    assert alike(Layer(), Layer()) and not alike(Layer(), other)


def kinds(text: str) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(2, ord(letter), device="meta") for letter in text)


@pytest.mark.parametrize(
    ("text", "chosen", "stand_ins"),
    [
        ("aaa", (0, 1), (0, 1, 1)),
        ("abbb", (0, 1), (0, 1, 1, 1)),
        ("abab", (0, 1, 2), (0, 1, 2, 1)),
        ("aabbab", (0, 1, 2), (0, 1, 2, 2, 1, 2)),
    ],
)
def test_the_first_and_one_of_each_kind_after_it_are_chosen(text, chosen, stand_ins):
    module = nn.ModuleDict({"blocks": kinds(text)})
    layers = find_layers(module)
    assert layers == Layers("blocks", module["blocks"], chosen, stand_ins)
    every = list(module["blocks"])
    with layers.shortened():
        assert list(module["blocks"]) == [every[index] for index in chosen]
    assert list(module["blocks"]) == every


@pytest.mark.parametrize("text", ["", "a", "aa", "abc"])
def test_lists_with_nothing_to_leave_out_are_left_alone(text):
    assert find_layers(nn.ModuleDict({"blocks": kinds(text)})) is None


def test_the_list_with_most_to_leave_out_is_taken():
    with_experts = nn.ModuleList(nn.ModuleDict({"experts": kinds("aaaaaaa")}) for _ in range(4))
    module = nn.ModuleDict({"stem": kinds("aaaa"), "blocks": with_experts})
    assert find_layers(module).path == "blocks"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a", {"blocks.0": (0,)}),
        ("aaa", {"blocks.0": (0, 1, 2)}),
        ("abab", {"blocks.0": (0, 2), "blocks.1": (1, 3)}),
        ("aabc", {"blocks.0": (0, 1), "blocks.2": (2,), "blocks.3": (3,)}),
    ],
)
def test_the_first_layer_of_each_kind_stands_for_its_kind(text, found):
    assert first_of_each_kind(nn.ModuleDict({"blocks": kinds(text)})) == found


def test_a_module_without_layers_has_no_kinds_of_them():
    assert first_of_each_kind(nn.Linear(2, 2)) == {}
    assert first_of_each_kind(nn.ModuleDict({"blocks": kinds("")})) == {}


def test_the_layers_are_those_of_the_list_with_most_in_it():
    with_experts = nn.ModuleList(nn.ModuleDict({"experts": kinds("aaa")}) for _ in range(2))
    module = nn.ModuleDict({"stem": kinds("aaaa"), "blocks": with_experts})
    assert first_of_each_kind(module) == {"blocks.0": (0, 1)}
    assert first_of_each_kind(kinds("ab")) == {"0": (0,), "1": (1,)}
