"""A tiny model with attention sinks, of a family from outside: Qwen3 with the attention of gpt-oss.

`transformers` is its judge, as it is that of the families of ingot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.qwen3 import modeling_qwen3

from bench.make_model import write_byte_tokenizer
from ingot.models import registry
from ingot.models.blocks.decoder import CausalLM
from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.families.qwen2 import read_windows
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp, windowed
from tests.support.tiny_models import CASES, VOCAB_SIZE, randomise

WINDOW = 7  # of the first of two layers
PARAMETER = "model.layers.{i}.self_attn.sinks"
STORED = "model.layers.{i}.self_attn.sink_logits"


def parse(fields: Fields) -> ModelConfig:
    """As of Qwen3, with sinks in every layer."""
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, qk_norm="head", bias=bias, o_bias=bias, sinks=True)
    return parse_decoder(
        fields,
        mixer=windowed(attention, read_windows(fields)),
        mlp=read_mlp(fields),
    )


FAMILY = Family(
    name="sunk",
    architectures=("SunkForCausalLM",),
    parse=parse,
    build=CausalLM,
    weights={PARAMETER: STORED},
)


@contextmanager
def known() -> Iterator[None]:
    """The family is registered, and forgotten after."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registered", registry.families())
        patch.setattr(registry, "_by_hand", {})
        registry.register(FAMILY)
        yield


def save(directory: Path) -> nn.Module:
    """Writes a model directory with random weights; returns the model of `transformers`."""
    config = CASES["qwen3_layer_types"]()
    config.num_hidden_layers, config.layer_types = 2, config.layer_types[:2]
    config.sliding_window = WINDOW
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for layer in model.model.layers:
        layer.self_attn.sinks = nn.Parameter(torch.zeros(config.num_attention_heads))
    randomise(model.eval())
    for layer in model.model.layers:
        layer.self_attn.sinks.data = 2 * torch.randn(config.num_attention_heads)
    config.architectures = list(FAMILY.architectures)
    config.save_pretrained(directory)
    tensors = {n.replace(".sinks", ".sink_logits"): p.data for n, p in model.named_parameters()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    write_byte_tokenizer(directory, VOCAB_SIZE)
    return model


def judged(model: nn.Module, ids: Sequence[int], *, sinks: bool = True) -> Tensor:
    """Logits [T, V] with the attention of gpt-oss, or with that of Qwen3, which has no sinks."""
    module = modeling_gpt_oss if sinks else modeling_qwen3
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(modeling_qwen3, "eager_attention_forward", module.eager_attention_forward)
        logits: Tensor = model(torch.tensor([ids]), use_cache=False).logits[0]
    return logits


def tokens(count: int) -> list[int]:
    """The same for every model."""
    rng = torch.Generator().manual_seed(count)
    return torch.randint(256, (count,), generator=rng).tolist()


def error(got: Tensor, expected: Tensor) -> float:
    """Relative, of all logits together."""
    return float((got - expected).norm() / expected.norm())
