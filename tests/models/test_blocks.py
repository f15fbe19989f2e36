"""Blocks on their own, and the graphs that modules export to."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from ingot.models import registry
from ingot.models.blocks.activation import activate
from ingot.models.blocks.constants import named_constants, register_constant
from ingot.models.blocks.layer_norm import LayerNorm
from ingot.models.blocks.linear import Linear
from ingot.models.blocks.plain_mlp import PlainMLP
from ingot.models.blocks.rms_norm import RMSNorm
from ingot.models.blocks.rope_frequencies import inverse_frequencies
from ingot.models.blocks.rotary import Rotary, rotate
from ingot.models.checkpoint import Checkpoint, materialize
from ingot.models.config import RopeConfig
from tests.support.tiny_models import VOCAB_SIZE, WINDOW, save_random


def filled(module: nn.Module) -> nn.Module:
    rng = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=rng)
    return module


def sample(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(offset: float) -> None:
    norm, x = filled(RMSNorm(24, 1e-5, offset=offset)), sample(1, 5, 24)
    expected = functional.rms_norm(x, (24,), norm.weight + offset, 1e-5)
    torch.testing.assert_close(norm(x), expected)


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(bias: bool) -> None:
    norm, x = filled(LayerNorm(24, 1e-5, bias=bias)), sample(1, 5, 24)
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), expected + norm.bias if bias else expected)


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias: bool) -> None:
    linear, x = filled(Linear(8, 12, bias=bias)), sample(1, 5, 8)
    expected = x @ linear.weight.T
    torch.testing.assert_close(linear(x), expected + linear.bias if bias else expected)


def test_plain_mlp(saved: Path) -> None:
    config = registry.load_config(saved / "single")
    mlp, x = filled(PlainMLP(config)), sample(1, 5, config.hidden_size)
    inner = functional.silu(x @ mlp.up_proj.weight.T)
    torch.testing.assert_close(mlp(x), inner @ mlp.down_proj.weight.T)


def test_activations() -> None:
    x = sample(100)
    tanh = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    torch.testing.assert_close(activate("gelu_tanh", x), tanh)
    torch.testing.assert_close(activate("gelu", x), 0.5 * x * (1 + torch.erf(x / math.sqrt(2))))
    torch.testing.assert_close(activate("silu", x), x * torch.sigmoid(x))
    torch.testing.assert_close(activate("relu", x), x.clamp_min(0))


def rope(rotary_dim: int, **changes: object) -> RopeConfig:
    values = {"rotary_dim": rotary_dim, "original_max_position_embeddings": 64, **changes}
    return RopeConfig(**values)  # type: ignore[arg-type]


def turned(config: RopeConfig, x: torch.Tensor, first: int) -> torch.Tensor:
    rotary = Rotary(config, max_model_len=64)
    materialized = named_constants(rotary)["inv_freq"]
    rotary.inv_freq = materialized
    return rotate(x, *rotary(torch.arange(first, first + x.shape[1])[None]))


@pytest.mark.parametrize("rotary_dim", [4, 8, 12])
def test_rotation_turns_pairs_of_the_first_dimensions(rotary_dim: int) -> None:
    x, half = sample(1, 6, 2, 12), rotary_dim // 2
    got = turned(rope(rotary_dim), x, 3)
    frequency = 10000.0 ** (-torch.arange(half) * 2 / rotary_dim)
    angle = (torch.arange(3, 9)[:, None] * frequency)[None, :, None, :]
    pair = torch.complex(x[..., :half], x[..., half:rotary_dim]) * torch.exp(1j * angle)
    torch.testing.assert_close(got[..., :rotary_dim], torch.cat((pair.real, pair.imag), -1))
    assert torch.equal(got[..., rotary_dim:], x[..., rotary_dim:])


def test_attention_factor_scales_the_rotated_part() -> None:
    x = sample(1, 3, 1, 8)
    plain, scaled = turned(rope(8), x, 0), turned(rope(8, attention_factor=2.0), x, 0)
    torch.testing.assert_close(scaled, 2 * plain)


def test_longrope_and_dynamic_are_fixed_by_the_longest_sequence() -> None:
    long = rope(8, type="longrope", short_factor=(1.0,) * 4, long_factor=(2.0,) * 4)
    assert torch.equal(inverse_frequencies(long, 64), inverse_frequencies(rope(8), 64))
    assert torch.equal(inverse_frequencies(long, 65) * 2, inverse_frequencies(long, 64))
    dynamic = rope(8, type="dynamic", factor=2.0)
    assert torch.equal(inverse_frequencies(dynamic, 1), inverse_frequencies(rope(8), 1))
    assert (inverse_frequencies(dynamic, 128)[1:] < inverse_frequencies(dynamic, 64)[1:]).all()


def test_constants_have_values_beside_meta_buffers() -> None:
    outer, inner = nn.Module(), nn.Module()
    outer.inner = inner
    with torch.device("meta"):
        register_constant(inner, "table", torch.arange(3, dtype=torch.float32, device="cpu"))
    assert inner.table.device.type == "meta" and "inner.table" not in outer.state_dict()
    assert named_constants(outer)["inner.table"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="table"):
        register_constant(inner, "table", torch.arange(3))


# The op vocabulary of exported graphs, which is what passes are written against.
EXPORTED = {
    "aten._assert_tensor_metadata.default", "aten.add.Tensor", "aten.cat.default",
    "aten.cos.default", "aten.embedding.default", "aten.linear.default", "aten.mean.dim",
    "aten.mul.Tensor", "aten.neg.default", "aten.pow.Tensor_Scalar", "aten.reshape.default",
    "aten.rsqrt.default", "aten.silu.default", "aten.sin.default", "aten.slice.Tensor",
    "aten.sym_size.int", "aten.to.dtype", "aten.unsqueeze.default", "aten.view.default",
    "ingot.attention.default",
}  # fmt: skip


@pytest.mark.parametrize("name", ["llama", "qwen2_window", "qwen3_tied", "mistral"])
def test_modules_export_with_a_dynamic_length(name: str, tmp_path: Path) -> None:
    config = registry.load_config(save_random(name, tmp_path))
    module = registry.build(config, max_model_len=64)
    inputs = tuple(torch.zeros(1, 8, dtype=torch.int64, device="meta") for _ in range(2))
    length = torch.export.Dim("T", min=1, max=64)
    with torch.no_grad():
        program = torch.export.export(
            module, inputs, dynamic_shapes=({1: length}, {1: length}), strict=False
        )
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    assert {str(node.target) for node in calls} <= EXPORTED
    counts = Counter(str(node.target) for node in calls)
    assert counts["ingot.attention.default"] == config.num_layers
    assert counts["aten.cos.default"] == counts["aten.sin.default"] == 1
    mixers = [node for node in calls if str(node.target) == "ingot.attention.default"]
    # Export leaves out trailing arguments that equal their defaults, here no window.
    windows = tuple(node.args[4] if len(node.args) > 4 else 0 for node in mixers)
    assert windows == config.windows
    assert WINDOW in windows or not any(config.windows)


def test_exported_graph_computes_what_the_module_does(saved: Path) -> None:
    config = registry.load_config(saved / "tied")
    module = registry.build(config, max_model_len=64)
    with Checkpoint.open(saved / "tied", config, module) as checkpoint:
        materialize(module, checkpoint)
    length = torch.export.Dim("T", min=1, max=64)
    inputs = (torch.zeros(1, 8, dtype=torch.int64), torch.arange(8)[None])
    with torch.no_grad():
        program = torch.export.export(
            module, inputs, dynamic_shapes=({1: length}, {1: length}), strict=False
        )
        for tokens in (1, 5, 33):
            ids = torch.arange(tokens)[None] * 7 % VOCAB_SIZE
            positions = torch.arange(tokens)[None]
            assert torch.equal(program.module()(ids, positions), module(ids, positions))
