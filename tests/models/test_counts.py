"""What modules say they become, against the calls of the graphs that they export to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

from ingot.errors import UnsupportedModelError
from ingot.models import registry
from ingot.models.blocks.decoder import CausalLM
from ingot.models.blocks.linear import Linear
from ingot.models.blocks.norm import RMSNorm
from ingot.models.blueprint import linear, rms_norm
from ingot.models.counts import module_counts
from ingot.models.model_dir import ModelDir
from tests.support.core import core
from tests.support.tiny_models import CASES, ROPES, save_random


def counts_of(name: str, model_dir: Path) -> tuple[Counter[str], nn.Module]:
    config = registry.load_config(ModelDir.open(save_random(name, model_dir)))
    module = registry.build(config, max_model_len=64)
    return module_counts(module), module


LLAMA = {
    "embedding": 1,
    "rms_norm": 5,
    "linear": 15,
    "merged_linears": 4,
    "rope_table": 1,
    "rope": 4,
    "attention": 2,
    "kv_write": 2,
    "gate": 2,
    "add": 4,
}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {}),
        ("llama_tied", {}),  # the head reads the embedding's table and is a linear all the same
        ("llama_attention_bias", {}),
        ("qwen3", {"rms_norm": 9}),
        (
            "gemma2",
            {"rms_norm": 13, "linear": 22, "merged_linears": 6, "rope": 6, "attention": 3}
            | {"kv_write": 3, "gate": 3, "add": 6, "mul": 1, "soft_cap": 1},
        ),
        (
            "gpt2",
            {"embedding": 2, "rms_norm": 0, "layer_norm": 5, "linear": 13, "merged_linears": 2}
            | {"rope_table": 0, "rope": 0, "gate": 0, "activation": 2, "add": 5},
        ),
    ],
)
def test_counts_of_families(name: str, changes: dict[str, int], tmp_path: Path) -> None:
    counts, _ = counts_of(name, tmp_path)
    assert counts == Counter(LLAMA | changes)


# Calls of exported graphs that occur exactly as often as a primitive.
CALLS = {
    "attention": "ingot.attention.default",
    "embedding": "aten.embedding.default",
    "layer_norm": "aten.layer_norm.default",
    "linear": "aten.linear.default",
    "rms_norm": "aten.rsqrt.default",
    "rope_table": "aten.cos.default",
    "soft_cap": "aten.tanh.default",
}


# Rotary types differ in values alone.
STRUCTURES = sorted(set(CASES) - {f"llama_{rope}" for rope in ROPES})
FAMILIES = [name for name in STRUCTURES if "_" not in name]


@pytest.mark.cases(core=2, thorough=15)
@pytest.mark.parametrize("name", core(*FAMILIES, further=STRUCTURES))
def test_counts_are_those_of_the_exported_graph(name: str, tmp_path: Path) -> None:
    counts, module = counts_of(name, tmp_path)
    inputs = tuple(torch.zeros(1, 8, dtype=torch.int64, device="meta") for _ in range(2))
    with torch.no_grad():
        graph = torch.export.export(module, inputs, strict=False).graph
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_function")
    assert {name: calls[target] for name, target in CALLS.items()} == {
        name: counts[name] for name in CALLS
    }
    kinds = ("aten.silu.default", "aten.gelu.default", "aten.relu.default")
    assert sum(calls[kind] for kind in kinds) == counts["gate"] + counts["activation"]
    # A rotation negates one half once.
    assert calls["aten.neg.default"] == counts["rope"]


def test_a_block_counts_in_every_place() -> None:
    with torch.device("meta"):
        norm = RMSNorm(rms_norm(8), 1e-5)
        module = nn.Sequential(norm, Linear(linear(8, 8)), norm)
    assert module_counts(module) == {"rms_norm": 2, "linear": 1}


@pytest.mark.parametrize("inner", [nn.Linear(2, 2), nn.LayerNorm(2)])
def test_a_module_with_parameters_must_say_what_it_becomes(inner: nn.Module) -> None:
    outer = nn.Sequential(nn.ReLU(), inner)
    with pytest.raises(UnsupportedModelError, match=f"{type(inner).__name__} at 1") as caught:
        module_counts(outer)
    assert "becomes" in caught.value.hint
    with pytest.raises(UnsupportedModelError, match=f"{type(inner).__name__} at the model itself"):
        module_counts(inner)


def test_parameters_that_become_nothing_of_their_own() -> None:
    class Kept(nn.Module):
        becomes: ClassVar = {}

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.norm = RMSNorm(rms_norm(8), 1e-5)

    assert module_counts(Kept()) == {"rms_norm": 1}


def test_a_module_of_its_own_with_known_children(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.first = self.second = inner

    _, model = counts_of("qwen3", tmp_path)
    assert isinstance(model, CausalLM)
    twice = module_counts(Twice(model))
    assert twice == Counter({name: 2 * count for name, count in module_counts(model).items()})
