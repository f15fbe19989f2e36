"""GGUF files against `transformers`, on the model that each was made from and on the file."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
import transformers

from ingot.models import registry
from ingot.models.checkpoint import Checkpoint, materialize
from tests.support.core import core
from tests.support.gguf_files import write_gguf
from tests.support.tiny_models import TRAINED, VOCAB_SIZE, save_random

LIMIT = 1e-5
Type = gguf.GGMLQuantizationType


def ours(path: Path, length: int) -> torch.Tensor:
    config = registry.load_config(path)
    module = registry.build(config, max_model_len=max(length, TRAINED))
    with Checkpoint.open(path, config, module) as checkpoint:
        materialize(module, checkpoint)
    with torch.no_grad():
        return module(ids(length), torch.arange(length)[None])


def ids(length: int) -> torch.Tensor:
    return torch.randint(VOCAB_SIZE, (1, length), generator=torch.Generator().manual_seed(length))


def theirs(model: torch.nn.Module, length: int) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids(length), use_cache=False).logits


def original(model_dir: Path) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    assert expected.std() > 0.1, "degenerate logits prove nothing"
    return float((got - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    "name",
    core(
        "llama",
        "qwen2",
        "qwen3",
        "gpt2",
        further=["llama_mqa", "llama_tied", "llama_attention_bias", "qwen3_attention_bias"],
    ),
)
def test_logits_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    model_dir = save_random(name, tmp_path / "model")
    path = write_gguf(model_dir, tmp_path / "model.gguf")
    model = original(model_dir)
    for length in (17, 90):
        assert error(ours(path, length), theirs(model, length)) <= LIMIT
