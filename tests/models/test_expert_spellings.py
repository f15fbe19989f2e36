"""Experts from files: every spelling that they are published in, and faults in them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.model_dir import ModelDir
from tests.support.checkpoints import Tensors, build, edit, refused, with_header
from tests.support.memory import resident_bytes
from tests.support.tiny_models import save_random

MLP = "model.layers.1.mlp"
GATE_UP, DOWN = f"{MLP}.experts.gate_up_proj", f"{MLP}.experts.down_proj"


@pytest.fixture
def qwen3(tmp_path: Path) -> Path:
    return save_random("qwen3moe", tmp_path / "qwen3")


def stored(model_dir: Path) -> Tensors:
    return load_file(model_dir / "model.safetensors")


def read_all(model_dir: Path) -> Tensors:
    with build(model_dir)[0] as checkpoint:
        return {name: checkpoint.read(name).clone() for name in checkpoint.names}


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_experts_with_tensors_of_their_own(qwen3: Path) -> None:
    tensors = stored(qwen3)
    with build(qwen3)[0] as checkpoint:
        assert checkpoint.shape(GATE_UP) == (7, 80, 64) and checkpoint.shape(DOWN) == (7, 64, 40)
        both, down = checkpoint.read(GATE_UP), checkpoint.read(DOWN)
        for expert in range(7):
            own = f"{MLP}.experts.{expert}"
            assert torch.equal(both[expert, :40], tensors[f"{own}.gate_proj.weight"])
            assert torch.equal(both[expert, 40:], tensors[f"{own}.up_proj.weight"])
            assert torch.equal(down[expert], tensors[f"{own}.down_proj.weight"])
        assert torch.equal(checkpoint.read(GATE_UP, 2, 5), both[2:5])
        assert torch.equal(torch.cat(list(checkpoint.pieces(GATE_UP, 30_000))), both)


def as_mixtral(tensors: Tensors) -> None:
    names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    for name in list(tensors):
        other = name.replace(".mlp.", ".block_sparse_moe.")
        for ours, theirs in names.items():
            other = other.replace(ours, theirs)
        tensors[other] = tensors.pop(name)


def as_stack(tensors: Tensors, layers: tuple[int, ...] = (0, 1)) -> None:
    for layer in layers:
        own = f"model.layers.{layer}.mlp.experts"
        taken = [
            [tensors.pop(f"{own}.{e}.{kind}_proj.weight") for kind in ("gate", "up", "down")]
            for e in range(7)
        ]
        tensors[f"{own}.gate_up_proj"] = torch.stack([torch.cat(each[:2]) for each in taken])
        tensors[f"{own}.down_proj"] = torch.stack([each[2] for each in taken])


def as_stack_in_one_layer(tensors: Tensors) -> None:
    as_stack(tensors, (1,))


@pytest.mark.parametrize("respell", [as_mixtral, as_stack, as_stack_in_one_layer])
def test_other_spellings_give_the_same(respell: Callable[[Tensors], None], qwen3: Path) -> None:
    expected = read_all(qwen3)
    assert same(read_all(edit(qwen3, respell)), expected)
    edit(qwen3, lambda t: t.update({k: v + 1 for k, v in t.items() if "experts" in k}))
    assert not same(read_all(qwen3), expected), "the control: other values are seen"


def test_shards_that_divide_the_experts_of_a_layer(qwen3: Path, tmp_path: Path) -> None:
    other = save_random("qwen3moe", tmp_path / "sharded", shard_kilobytes=40)
    assert len(list(other.glob("*.safetensors"))) > 4
    assert same(read_all(other), read_all(qwen3))


def test_gates_that_take_turns_with_up_in_transposed_tensors(tmp_path: Path) -> None:
    model_dir = save_random("gptoss", tmp_path, "bfloat16")
    tensors, own = stored(model_dir), f"{MLP}.experts"
    assert tensors[GATE_UP].shape == (7, 64, 80)
    with build(model_dir)[0] as checkpoint:
        rows = tensors[GATE_UP].transpose(1, 2)
        expected = torch.cat([rows[:, 0::2], rows[:, 1::2]], dim=1)
        assert torch.equal(checkpoint.read(GATE_UP), expected)
        assert torch.equal(checkpoint.read(GATE_UP, 3, 4), expected[3:4])
        assert torch.equal(checkpoint.read(DOWN), tensors[DOWN].transpose(1, 2))
        bias = tensors[f"{own}.gate_up_proj_bias"]
        expected = torch.cat([bias[:, 0::2], bias[:, 1::2]], dim=1)
        assert torch.equal(checkpoint.read(f"{own}.gate_up_proj_bias"), expected)
        assert torch.equal(
            checkpoint.read(f"{own}.down_proj_bias"), tensors[f"{own}.down_proj_bias"]
        )
        assert torch.equal(checkpoint.read(f"{MLP}.gate.bias"), tensors[f"{MLP}.router.bias"])


@pytest.mark.parametrize(
    ("name", "parameter", "tensor"),
    [
        ("granitemoe", GATE_UP, "block_sparse_moe.input_linear.weight"),
        ("granitemoe", DOWN, "block_sparse_moe.output_linear.weight"),
        ("granitemoe", f"{MLP}.gate.weight", "block_sparse_moe.router.layer.weight"),
        ("mixtral", f"{MLP}.gate.weight", "block_sparse_moe.gate.weight"),
        ("minimax", f"{MLP}.gate.weight", "block_sparse_moe.gate.weight"),
        (
            "minimax",
            f"{MLP}.gate.e_score_correction_bias",
            "block_sparse_moe.e_score_correction_bias",
        ),
        (
            "ernie4moe",
            f"{MLP}.gate.e_score_correction_bias",
            "mlp.moe_statics.e_score_correction_bias",
        ),
        ("ernie4moe", f"{MLP}.shared_experts.up_proj.weight", "mlp.shared_experts.up_proj.weight"),
        ("glm4moe", f"{MLP}.gate.e_score_correction_bias", "mlp.gate.e_score_correction_bias"),
        ("hunyuanmoe", f"{MLP}.gate.weight", "mlp.gate.wg.weight"),
        ("hunyuanmoe", f"{MLP}.shared_experts.up_proj.weight", "mlp.shared_mlp.up_proj.weight"),
        ("qwen2moe", f"{MLP}.shared_gate.weight", "mlp.shared_expert_gate.weight"),
        ("qwen2moe", f"{MLP}.shared_experts.down_proj", "mlp.shared_expert.down_proj.weight"),
    ],
)
def test_published_names(name: str, parameter: str, tensor: str, tmp_path: Path) -> None:
    """What `transformers` writes are the names of the published files."""
    model_dir = save_random(name, tmp_path)
    found = stored(model_dir)[f"model.layers.1.{tensor}"]
    with build(model_dir)[0] as checkpoint:
        assert torch.equal(checkpoint.read(parameter).view(-1), found.reshape(-1))


@pytest.mark.parametrize("ndim", [1, 2])
def test_a_bias_with_and_without_a_dimension_of_one(ndim: int, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.moe_statics.e_score_correction_bias"
    model_dir = save_random("ernie4moe", tmp_path)
    expected = read_all(model_dir)
    assert stored(model_dir)[name].shape == (1, 7)
    edit(model_dir, lambda t: t.update({name: t[name].reshape((1, 7)[2 - ndim :]).clone()}))
    assert same(read_all(model_dir), expected)


# Faults


def test_a_missing_expert(qwen3: Path) -> None:
    error = refused(
        edit(qwen3, lambda t: t.pop(f"{MLP}.experts.6.up_proj.weight")),
        f"lacks {MLP}.experts.6.up_proj.weight",
    )
    assert "7 experts" in error.hint


def test_an_expert_too_many(qwen3: Path) -> None:
    name = f"{MLP}.experts.7.down_proj.weight"
    assert (
        "7 experts"
        in refused(edit(qwen3, lambda t: t.update({name: torch.ones(64, 40)})), name).hint
    )


def test_a_config_with_another_number_of_experts(qwen3: Path) -> None:
    path = qwen3 / "config.json"
    values = json.loads(path.read_text())
    for count in (6, 8):
        key = "num_experts" if "num_experts" in values else "num_local_experts"
        path.write_text(json.dumps({**values, key: count}))
        found = refused(qwen3, f".experts.{min(count, 7)}.").found
        assert ("lacks" in found) == (count == 8)


def test_a_router_of_another_size(qwen3: Path) -> None:
    name = f"{MLP}.gate.weight"
    edit(qwen3, lambda t: t.update({name: torch.ones(8, 64)}))
    refused(qwen3, f"{name} [8, 64] instead of [7, 64]")


def test_a_misshapen_expert(qwen3: Path) -> None:
    name = f"{MLP}.experts.3.gate_proj.weight"
    edit(qwen3, lambda t: t.update({name: torch.ones(39, 64)}))
    refused(qwen3, f"{name} [39, 64] instead of [40, 64]")


def test_a_stack_of_another_number_of_experts(qwen3: Path) -> None:
    edit(qwen3, as_stack)
    edit(qwen3, lambda t: t.update({DOWN: t[DOWN][:6].clone()}))
    refused(qwen3, f"{DOWN} [6, 64, 40] instead of [7, 64, 40]")


def test_a_stack_that_is_not_transposed(tmp_path: Path) -> None:
    model_dir = save_random("gptoss", tmp_path)
    edit(model_dir, lambda t: t.update({GATE_UP: t[GATE_UP].transpose(1, 2).contiguous()}))
    refused(model_dir, f"{GATE_UP} [7, 80, 64] instead of [7, 64, 80]")


def test_experts_in_two_spellings(qwen3: Path) -> None:
    edit(qwen3, lambda t: t.update({DOWN: torch.ones(7, 64, 40)}))
    refused(qwen3, f"does not use: {DOWN}")


def test_experts_of_two_dtypes(qwen3: Path) -> None:
    name = f"{MLP}.experts.3.gate_proj.weight"
    edit(qwen3, lambda t: t.update({name: t[name].to(torch.bfloat16)}))
    found = refused(qwen3, name).found
    assert "BF16" in found and "F32" in found


def test_values_of_an_expert_that_are_not_finite(qwen3: Path) -> None:
    name = f"{MLP}.experts.3.up_proj.weight"
    edit(qwen3, lambda t: t[name].__setitem__((5, 5), math.nan))
    with build(qwen3)[0] as checkpoint:
        checkpoint.read(GATE_UP, 0, 3)
        with pytest.raises(Exception, match=re.escape(name)):
            checkpoint.read(GATE_UP, 3, 4)


def test_layers_after_the_last_are_unused_as_far_as_the_config_counts_them(tmp_path: Path) -> None:
    model_dir = save_random("glm4moe", tmp_path)
    extra = "model.layers.{}.eh_proj.weight"
    edit(model_dir, lambda t: t.update({extra.format(2): torch.ones(2)}))
    build(model_dir)[0].close()
    edit(model_dir, lambda t: t.update({extra.format(3): torch.ones(2)}))
    refused(model_dir, extra.format(3))


WIDE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 1024,
    "intermediate_size": 64,
    "moe_intermediate_size": 512,
    "num_experts": 96,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-6,
}


def test_experts_are_read_one_by_one(tmp_path: Path) -> None:
    """The memory that reading takes does not grow with the number of experts: 200 MB here."""
    config = registry.parse_config(WIDE)
    module = registry.build(config, max_model_len=8)
    shapes = {n: list(p.shape) for n, p in module.named_parameters() if "experts" not in n}
    for expert in range(96):
        own = f"model.layers.0.mlp.experts.{expert}"
        shapes |= {f"{own}.{kind}_proj.weight": [512, 1024] for kind in ("gate", "up")}
        shapes[f"{own}.down_proj.weight"] = [1024, 512]
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    (tmp_path / "config.json").write_text(json.dumps(WIDE))
    text = json.dumps(header)
    with_header(tmp_path / "model.safetensors", text)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(8 + len(text) + end)
    with Checkpoint.open(ModelDir.open(tmp_path), config, module) as checkpoint:
        checkpoint.read("model.norm.weight")
        before, peak = resident_bytes(), 0
        for expert in range(96):
            checkpoint.read("model.layers.0.mlp.experts.gate_up_proj", expert, expert + 1)
            peak = max(peak, resident_bytes())
        whole = checkpoint.read("model.layers.0.mlp.experts.gate_up_proj")
        control = resident_bytes()
    assert peak - before < 50e6 < whole.nbytes <= control - before + 20e6
