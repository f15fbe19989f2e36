"""Blocks on their own, and the graphs that modules export to."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from ingot.models import blueprint, registry
from ingot.models.blocks.attention import Attention
from ingot.models.blocks.constants import named_constants, register_constant
from ingot.models.blocks.decoder import LAYERS, Decoder, Embedding, SoftCap
from ingot.models.blocks.linear import Linear
from ingot.models.blocks.mlp import PlainMLP, activate
from ingot.models.blocks.norm import LayerNorm, RMSNorm
from ingot.models.blocks.rotary import Rotary, inverse_frequencies, rotate
from ingot.models.checkpoints.checkpoint import Checkpoint, materialize
from ingot.models.config import ModelConfig
from ingot.models.model_dir import ModelDir
from ingot.models.rope import NO_ROPE, RopeConfig
from tests.support.configs import with_layers
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
    norm, x = filled(RMSNorm(blueprint.rms_norm(24), 1e-5, offset=offset)), sample(1, 5, 24)
    expected = functional.rms_norm(x, (24,), norm.weight + offset, 1e-5)
    torch.testing.assert_close(norm(x), expected)


# Beside an epsilon of 0.1: rows as large, rows that it outweighs, and a row of zeros.
ROW_SCALES = torch.tensor([1.0, 0.3, 1e-3, 1e-20, 0.0])[None, :, None]


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("eps", [0.1, 0.07])
def test_rms_norm_adds_epsilon_to_the_mean_of_squares(eps: float, offset: float) -> None:
    norm, x = (
        filled(RMSNorm(blueprint.rms_norm(24), eps, offset=offset)),
        sample(1, 5, 24) * ROW_SCALES,
    )
    squares = x.double().pow(2).mean(-1, keepdim=True)
    expected = x.double() / (squares + eps).sqrt() * (norm.weight.double() + offset)
    torch.testing.assert_close(norm(x).double(), expected, rtol=1e-5, atol=0)
    assert (norm(x)[0, -1] == 0).all()


@pytest.mark.parametrize("eps", [0.1, 0.07])
def test_layer_norm_adds_epsilon_to_the_variance(eps: float) -> None:
    norm, x = filled(LayerNorm(blueprint.layer_norm(24), eps)), sample(1, 5, 24) * ROW_SCALES
    centred = x.double() - x.double().mean(-1, keepdim=True)
    variance = centred.pow(2).mean(-1, keepdim=True)
    expected = centred / (variance + eps).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm(x).double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(norm(x)[0, -1], norm.bias)


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(bias: bool) -> None:
    norm, x = filled(LayerNorm(blueprint.layer_norm(24, bias=bias), 1e-5)), sample(1, 5, 24)
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), expected + norm.bias if bias else expected)


def config_of(model_dir: Path, **changes: object) -> ModelConfig:
    return replace(registry.load_config(ModelDir.open(model_dir)), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("q_offset", "k_offset", "rotates"),
    [(0.0, 1.0, True), (1.0, 0.0, True), (1.0, 1.0, False), (0.0, 0.5, False)],
)
def test_norms_of_queries_and_keys(
    q_offset: float, k_offset: float, rotates: bool, saved: Path
) -> None:
    """Each with its own weight and offset, before the rotation, and none for values."""
    config = config_of(saved / "single", norm_eps=0.1, norm_offset=1.0)
    usual = config.layers[0].mixer
    turn = usual.rope if rotates else NO_ROPE
    mixer = replace(usual, window=3, scale=0.4, qk_norm="head", rope=turn)
    attention = filled(Attention(config, mixer))
    assert attention.q_norm.offset == attention.k_norm.offset == 1.0
    attention.q_norm.offset, attention.k_norm.offset = q_offset, k_offset
    angles = sample(1, 5, mixer.head_dim)
    table = (angles.cos(), angles.sin())
    x = sample(1, 5, config.hidden_size)

    def heads(name: str, count: int) -> torch.Tensor:
        weight = attention.get_parameter(f"{name}_proj.weight")
        return (x @ weight.T).view(1, 5, count, mixer.head_dim)

    q, k, v = heads("q", mixer.num_heads), heads("k", 2), heads("v", 2)
    q = functional.rms_norm(q, (16,), attention.q_norm.weight + q_offset, 0.1)
    k = functional.rms_norm(k, (16,), attention.k_norm.weight + k_offset, 0.1)
    if rotates:
        q, k = rotate(q, *table), rotate(k, *table)
    mixed = torch.ops.ingot.attention(q, k, v, 0.4, 3, 0.0).flatten(2)
    torch.testing.assert_close(attention(x, {turn: table}), mixed @ attention.o_proj.weight.T)


@pytest.mark.parametrize("placement", ["pre", "sandwich"])
@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("mlp", ["gated", "plain"])
def test_where_a_layer_norms(placement: str, norm: str, mlp: str, saved: Path) -> None:
    config = config_of(saved / "single", placement=placement, norm=norm)
    config = with_layers(config, rope=NO_ROPE, mlp={"kind": mlp})
    layer = filled(LAYERS[config.placement](config, config.layers[0]))
    x = sample(1, 4, config.hidden_size)
    attended = layer.self_attn(layer.input_layernorm(x), {})
    if placement == "sandwich":
        middle = x + layer.post_attention_layernorm(attended)
        normed = layer.mlp(layer.pre_feedforward_layernorm(middle))
        expected = middle + layer.post_feedforward_layernorm(normed)
    else:
        middle = x + attended
        expected = middle + layer.mlp(layer.post_attention_layernorm(middle))
    torch.testing.assert_close(layer(x, {}, x), expected)
    kinds = {"rms": RMSNorm, "layer": LayerNorm}
    norms = [b for b in layer.modules() if isinstance(b, tuple(kinds.values()))]
    assert len(norms) == (4 if placement == "sandwich" else 2)
    assert all(isinstance(block, kinds[norm]) for block in norms)


def test_soft_cap_bounds_and_keeps_small_values() -> None:
    x = torch.tensor([0.0, 1e-3, -1.0, 5.0, 1e6, -1e6])
    expected = 5.0 * torch.tanh(x.double() / 5.0)
    torch.testing.assert_close(SoftCap(5.0)(x).double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("scale", [1.0, 8.0, math.sqrt(68)])
def test_embedding(scale: float) -> None:
    embedding, ids = (
        filled(Embedding(blueprint.embedding(7, 4), scale=scale)),
        torch.tensor([[3, 0, 3]]),
    )
    expected = embedding.weight[ids] * torch.tensor(scale, dtype=torch.float32)
    assert torch.equal(embedding(ids), expected)


def test_embeddings_of_positions_are_added_unscaled(saved: Path) -> None:
    config = config_of(saved / "single", learned_positions=True, embedding_scale=3.0, layers=())
    decoder = filled(Decoder(config, max_model_len=8))
    ids, positions = torch.tensor([[3, 0, 3]]), torch.tensor([[0, 1, 511]])
    x = 3.0 * decoder.embed_tokens.weight[ids] + decoder.embed_positions.weight[positions]
    torch.testing.assert_close(decoder(ids, positions), decoder.norm(x))


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias: bool) -> None:
    linear, x = filled(Linear(blueprint.linear(8, 12, bias=bias))), sample(1, 5, 8)
    expected = x @ linear.weight.T
    torch.testing.assert_close(linear(x), expected + linear.bias if bias else expected)


def test_plain_mlp(saved: Path) -> None:
    config = registry.load_config(ModelDir.open(saved / "single"))
    mlp, x = filled(PlainMLP(config, config.layers[0].mlp)), sample(1, 5, config.hidden_size)
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
    with pytest.raises(ValueError, match="table"):
        register_constant(inner, "table", torch.ones(3, device="meta"))


# The op vocabulary of exported graphs, which is what passes are written against.
EXPORTED = {
    "aten._assert_tensor_metadata.default", "aten.add.Tensor", "aten.cat.default",
    "aten.cos.default", "aten.embedding.default", "aten.linear.default", "aten.mean.dim",
    "aten.mul.Tensor", "aten.neg.default", "aten.pow.Tensor_Scalar", "aten.reshape.default",
    "aten.rsqrt.default", "aten.silu.default", "aten.sin.default", "aten.slice.Tensor",
    "aten.sym_size.int", "aten.to.dtype", "aten.unsqueeze.default", "aten.view.default",
    "ingot.attention.default",
    # of Gemma 2 and GPT-2 alone
    "aten.div.Tensor", "aten.gelu.default", "aten.layer_norm.default", "aten.tanh.default",
}  # fmt: skip


@pytest.mark.cases(core=2)
@pytest.mark.parametrize(
    "name", ["llama", "qwen2_window", "qwen3_tied", "mistral", "gemma2", "gpt2"]
)
def test_modules_export_with_a_dynamic_length(name: str, tmp_path: Path) -> None:
    config = registry.load_config(ModelDir.open(save_random(name, tmp_path)))
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
    assert counts["aten.cos.default"] == counts["aten.sin.default"] == len(config.ropes)
    mixers = [node for node in calls if str(node.target) == "ingot.attention.default"]
    # Export leaves out trailing arguments that equal their defaults, here no window.
    windows = tuple(node.args[4] if len(node.args) > 4 else 0 for node in mixers)
    assert windows == config.windows
    assert WINDOW in windows or not any(config.windows)


def test_exported_graph_computes_what_the_module_does(saved: Path) -> None:
    config = registry.load_config(ModelDir.open(saved / "tied"))
    module = registry.build(config, max_model_len=64)
    with Checkpoint.open(ModelDir.open(saved / "tied"), config, module) as checkpoint:
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
