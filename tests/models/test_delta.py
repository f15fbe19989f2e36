"""Models with the gated delta rule: against `transformers`, and every way they are published in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from ingot.compiler.explain import active_parameters
from ingot.errors import CheckpointError, ConfigError, ContradictionError
from ingot.models import registry
from ingot.models.attention_config import AttentionConfig
from ingot.models.blocks.attention import Attention
from ingot.models.blocks.delta import GatedDelta
from ingot.models.blocks.norm import RMSNorm
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.config import ModelConfig
from ingot.models.delta_config import DeltaConfig
from ingot.models.model_dir import ModelDir
from ingot.models.moe_config import MoeConfig
from tests.models.test_against_transformers import check, error, load, logits, theirs
from tests.models.test_blueprint import config_of, shapes
from tests.support.checkpoints import edit
from tests.support.core import core
from tests.support.delta_models import CASES
from tests.support.published_delta import PUBLISHED
from tests.support.quantized_checkpoints import LAYOUTS, draw, set_config
from tests.support.tiny_models import save_random

Tensors = dict[str, torch.Tensor]
NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"
DENSE, SPARSE = "Qwen/Qwen3.5-27B", "Qwen/Qwen3.5-35B-A3B"
LINEAR = "model.layers.0.linear_attn"


@pytest.mark.parametrize("name", core("qwen35", "qwen3next", further=CASES))
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    check(save_random(name, tmp_path))


@pytest.mark.parametrize("name", core("qwen35moe", "qwen3next_odd", further=CASES))
def test_a_blueprint_has_the_parameters_of_the_module(name: str) -> None:
    config = config_of(name)
    told, module = registry.blueprint(config), registry.build(config, max_model_len=64)
    assert told.parameters == shapes(module)


def test_the_first_token_still_moves_the_last_logits(tmp_path: Path) -> None:
    """What the other tests rely on: a state that is lost or swapped would be seen."""
    module, _ = load(save_random("qwen35_linear", tmp_path), 64)
    ids, positions = torch.randint(320, (1, 40)), torch.arange(40)[None]
    other = ids.clone()
    other[0, 0] = (other[0, 0] + 1) % 320
    with torch.no_grad():
        first, second = (module(each, positions)[:, -1] for each in (ids, other))
    assert error(first, second) > 1e-3


Change = Callable[[nn.Module], object]


def _tiled(block: nn.Module) -> None:
    """Value head j takes key head j mod K, as in files of llama.cpp."""
    if isinstance(block, GatedDelta):
        heads, keys = block.mixer.value_heads, block.mixer.key_heads
        order = torch.arange(heads).view(keys, -1).t().reshape(-1)
        block.decay.data = block.decay.data[order]


def _without(kind: type[nn.Module], name: str, value: Any) -> Change:
    return lambda block: setattr(block, name, value) if isinstance(block, kind) else None


def _norm_offset(block: nn.Module) -> None:
    """The norm of heads has no offset, and all others have one."""
    if isinstance(block, GatedDelta):
        block.norm.offset = 1.0


def _longer(block: nn.Module) -> None:
    if isinstance(block, GatedDelta):
        block.q_unit *= 2.0
        block.k_unit *= 0.9


CHANGES: dict[str, tuple[str, Change]] = {
    "order of heads": ("qwen35", _tiled),
    "gate of attention": ("qwen35", _without(Attention, "gate_proj", None)),
    "offset of the norm of heads": ("qwen3next", _norm_offset),
    "offset of norms": ("qwen35", _without(RMSNorm, "offset", 0.0)),
    "length of queries and keys": ("qwen35", _longer),
}


@pytest.mark.parametrize("change", core(*list(CHANGES)[:2], further=CHANGES))
def test_every_part_matters(change: str, tmp_path: Path) -> None:
    """Negative control: with another one the logits are far from those of transformers."""
    name, changed = CHANGES[change]
    module, _ = load(save_random(name, tmp_path), 64)
    expected = logits(theirs(tmp_path), 40)
    assert error(logits(module, 40), expected) < 1e-5
    with torch.no_grad():
        module.apply(changed)
    assert error(logits(module, 40), expected) > 1e-3


# Parameters in billions, and those that compute a token, without images and further tokens.
BILLIONS = {
    "Qwen/Qwen3.5-0.8B": (0.752, 0.752),
    DENSE: (26.9, 26.9),
    SPARSE: (34.7, 3.45),
    NEXT: (79.7, 3.87),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_makes_a_model_of_its_size(name: str) -> None:
    blueprint = registry.blueprint(registry.parse_config(PUBLISHED[name]))
    whole = sum(map(prod, blueprint.parameters.values()))
    assert (whole / 1e9, active_parameters(blueprint) / 1e9) == pytest.approx(
        BILLIONS[name], rel=0.002
    )


def mixers(config: ModelConfig) -> tuple[AttentionConfig, DeltaConfig]:
    """Both mixers, which alternate three to one."""
    kinds = [isinstance(layer.mixer, AttentionConfig) for layer in config.layers]
    assert kinds == ([False] * 3 + [True]) * (len(kinds) // 4)
    attention, delta = config.layers[-1].mixer, config.layers[0].mixer
    assert isinstance(attention, AttentionConfig) and isinstance(delta, DeltaConfig)
    return attention, delta


def test_published_keys() -> None:
    config = registry.parse_config(PUBLISHED[SPARSE])
    attention, delta = mixers(config)
    assert (delta.key_heads, delta.value_heads, delta.taps) == (16, 32, 4)
    assert (attention.gate, attention.qk_norm, attention.rope.rotary_dim) == ("element", "head", 64)
    assert (config.norm_offset, config.vocab_size, config.windows) == (1.0, 248320, (0,) * 10)
    # A state of 32 heads of 128 x 128 and 3 rows of 8192 in each of 30 layers, in float32.
    assert config.record_bytes == 30 * 4 * (32 * 128 * 128 + 3 * 8192)
    assert config.kv_bytes_per_token(2) == 10 * 2 * 2 * 256 * 2
    moe = config.layers[0].mlp
    assert isinstance(moe, MoeConfig) and moe.normalise and moe.shared_gate
    assert registry.parse_config(PUBLISHED["Qwen/Qwen3.5-0.8B"]).tie_embeddings
    next_80b = registry.parse_config(PUBLISHED[NEXT])
    assert mixers(next_80b)[0].rope == replace(
        attention.rope, original_max_position_embeddings=262144
    )


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("Qwen3_5Text", "Qwen3_5ForCausalLM"),
        ("Qwen3_5MoeText", "Qwen3_5MoeForCausalLM"),
        ("Qwen3Next", "Qwen3NextForCausalLM"),
    ],
)
def test_what_a_file_leaves_out_is_as_in_transformers(kind: str, architecture: str) -> None:
    made = getattr(transformers, f"{kind}Config")()
    silent = {"architectures": [architecture], "model_type": made.model_type}
    assert registry.parse_config({**made.to_dict(), **silent}) == registry.parse_config(silent)


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        (DENSE, {"attn_output_gate": False}, "attn_output_gate"),
        (DENSE, {"hidden_act": "gelu"}, "hidden_act"),
        (DENSE, {"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype"),
        (DENSE, {"layer_types": ["full_attention"]}, "layer_types"),
        (DENSE, {"layer_types": ["sliding_attention"] * 64}, "layer_types"),
        (DENSE, {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        (DENSE, {"full_attention_interval": 0}, "full_attention_interval"),
        (DENSE, {"linear_allow_neg_eigval": True}, "linear_allow_neg_eigval"),
        (SPARSE, {"norm_topk_prob": False}, "norm_topk_prob"),
        (SPARSE, {"decoder_sparse_step": 2}, "decoder_sparse_step"),
        (NEXT, {"num_experts": -1}, "num_experts"),
    ],
)
def test_values_that_are_not_built(name: str, changes: dict[str, Any], named: str) -> None:
    values = PUBLISHED[name]
    if "text_config" in values:
        changes = {"text_config": {**values["text_config"], **changes}}
    with pytest.raises(ConfigError, match=named) as caught:
        registry.parse_config({**values, **changes})
    assert caught.value.hint


def test_heads_that_cannot_share_keys() -> None:
    with pytest.raises(ContradictionError, match="linear_num_value_heads 24"):
        registry.parse_config({**PUBLISHED[NEXT], "linear_num_value_heads": 24})


def parameters(model_dir: Path) -> Tensors:
    config = registry.load_config(ModelDir.open(model_dir))
    module = registry.build(config, max_model_len=64)
    with Checkpoint.open(ModelDir.open(model_dir), config, module) as checkpoint:
        return {name: checkpoint.read(name).clone() for name, _ in module.named_parameters()}


def publish(model_dir: Path, architecture: str, *, stacked: bool = False) -> None:
    """Spells the file of a text model as those are that also take images: with their tensors, and
    those of layers that predict further tokens."""
    path = model_dir / "config.json"
    text = json.loads(path.read_text())
    own = {key: text.pop(key) for key in ("tie_word_embeddings", "transformers_version")}
    whole = PUBLISHED[SPARSE if stacked else DENSE]
    around = {key: value for key, value in whole.items() if key != "text_config"}
    path.write_text(
        json.dumps({**around, "architectures": [architecture], "text_config": text, **own})
    )
    weights = model_dir / "model.safetensors"
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(weights).items()
    }
    tensors |= {
        "model.visual.patch_embed.proj.weight": torch.ones(3),
        "mtp.norm.weight": torch.ones(4),
    }
    save_file(tensors, weights, metadata={"format": "pt"})


def experts_by_one(tensors: Tensors) -> None:
    """Experts as tensors of their own, where they are stacked."""
    for name in [name for name in tensors if name.endswith("experts.gate_up_proj")]:
        prefix = name.removesuffix("gate_up_proj")
        pairs = zip(tensors.pop(name), tensors.pop(f"{prefix}down_proj"), strict=True)
        for expert, (gate_up, down) in enumerate(pairs):
            gate, up = gate_up.chunk(2)
            parts = {"gate_proj": gate, "up_proj": up, "down_proj": down}
            tensors |= {
                f"{prefix}{expert}.{part}.weight": each.contiguous() for part, each in parts.items()
            }


def stacked_experts(tensors: Tensors) -> None:
    """Experts of a layer in two tensors, where they have tensors of their own."""
    firsts = [name for name in tensors if name.endswith("experts.0.gate_proj.weight")]
    for first in firsts:
        prefix = first.removesuffix("0.gate_proj.weight")
        count = sum(name.startswith(prefix) for name in tensors) // 3
        gate, up, down = (
            torch.stack([tensors.pop(f"{prefix}{e}.{part}_proj.weight") for e in range(count)])
            for part in ("gate", "up", "down")
        )
        tensors |= {f"{prefix}gate_up_proj": torch.cat((gate, up), 1), f"{prefix}down_proj": down}


@pytest.mark.parametrize(
    ("name", "architecture"),
    core(
        ("qwen35moe", "Qwen3_5MoeForConditionalGeneration"),
        further=[("qwen35_odd", "Qwen3_5ForConditionalGeneration")],
    ),
)
def test_published_spellings_are_the_same_model(
    name: str, architecture: str, tmp_path: Path
) -> None:
    expected = parameters(save_random(name, tmp_path))
    for spell in (experts_by_one, stacked_experts):
        edit(tmp_path, spell)
        found = parameters(tmp_path)
        assert all(torch.equal(found[each], tensor) for each, tensor in expected.items())
    publish(tmp_path, architecture, stacked="moe" in name)
    found = parameters(tmp_path)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[each], tensor) for each, tensor in expected.items())


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["Qwen3_5", "Qwen3_5Moe"])
def test_the_text_of_a_model_of_images_that_transformers_saved(kind: str, tmp_path: Path) -> None:
    text = CASES["qwen35moe" if kind.endswith("Moe") else "qwen35"]().to_dict()
    vision = {
        **{"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2},
        **{"out_hidden_size": 64, "num_position_embeddings": 16},
    }
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).float().eval()
    model.save_pretrained(tmp_path)
    module, _ = load(tmp_path, 64)
    ids, positions = torch.randint(320, (1, 20)), torch.arange(20)[None]
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits
        assert error(module(ids, positions), expected) < 1e-5


def test_rates_of_a_half_precision_file_are_read_unrounded(tmp_path: Path) -> None:
    save_random("qwen35", tmp_path, "bfloat16")
    rates = torch.linspace(-6.0, 1.0, 6)
    own = {f"{LINEAR}.A_log": rates, f"{LINEAR}.dt_bias": rates / 3}
    assert not torch.equal(rates, rates.bfloat16().float())
    edit(tmp_path, lambda tensors: tensors.update(own))
    found = parameters(tmp_path)
    ours = "model.layers.0.self_attn"
    assert torch.equal(found[f"{ours}.decay"], -rates.exp())
    assert torch.equal(found[f"{ours}.ba_proj.bias"], torch.cat((torch.zeros(6), rates / 3)))
    assert found[f"{ours}.ba_proj.weight"].dtype == torch.bfloat16


def test_any_rows_of_joined_tensors_are_those_of_the_whole(tmp_path: Path) -> None:
    save_random("qwen3next", tmp_path)
    config = registry.load_config(ModelDir.open(tmp_path))
    module = registry.build(config, max_model_len=64)
    with Checkpoint.open(ModelDir.open(tmp_path), config, module) as checkpoint:
        for name in ("qkv_proj.weight", "ba_proj.weight", "ba_proj.bias"):
            name = f"model.layers.0.self_attn.{name}"
            whole = checkpoint.read(name).clone()
            for start in range(0, len(whole), 7):
                for stop in (start + 1, min(start + 40, len(whole)), len(whole)):
                    assert torch.equal(checkpoint.read(name, start, stop), whole[start:stop])
            assert torch.equal(torch.cat([*checkpoint.pieces(name, 300)]), whole)


@pytest.mark.parametrize(
    ("tensor", "shape"),
    [("in_proj_qkvz", (340, 64)), ("in_proj_ba", (11, 64)), ("conv1d", (3, 1, 4))],
)
def test_a_misshapen_tensor_is_refused(tensor: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    save_random("qwen3next", tmp_path)
    name = f"{LINEAR}.{tensor}.weight"
    edit(tmp_path, lambda tensors: tensors.update({name: torch.zeros(shape)}))
    with pytest.raises(CheckpointError, match=tensor):
        parameters(tmp_path)


@pytest.mark.parametrize("layout", core("gptq-ordered", further=["awq", "int-quantized"]))
def test_joined_rows_of_a_quantized_matrix_are_its_integers(layout: str, tmp_path: Path) -> None:
    save_random("qwen3next", tmp_path)
    whole = f"{LINEAR}.in_proj_qkvz"
    known = draw(LAYOUTS[layout], torch.empty(352, 64), torch.Generator().manual_seed(0))

    def quantize(tensors: Tensors) -> None:
        del tensors[f"{whole}.weight"]
        parts = LAYOUTS[layout].write(known)
        tensors.update({f"{whole}{end}": part.contiguous() for end, part in parts.items()})

    edit(tmp_path, quantize)
    set_config(tmp_path, LAYOUTS[layout].config)
    # Of each of two key heads: a query and a key of 16, and values and gates of 3 heads of 24.
    parts = torch.arange(352).view(2, 176).split((16, 16, 72, 72), dim=1)
    rows = torch.cat([part.reshape(-1) for part in parts[:3]])
    config = registry.load_config(ModelDir.open(tmp_path))
    module = registry.build(config, max_model_len=64)
    with Checkpoint.open(ModelDir.open(tmp_path), config, module) as checkpoint:
        name = "model.layers.0.self_attn.qkv_proj.weight"
        assert torch.equal(checkpoint.read(name), known.numbers()[rows])
        order = checkpoint.order(name)
        columns = torch.arange(64) if order is None else torch.from_numpy(order)
        integers = checkpoint.integers(name)
        assert integers is not None
        assert torch.equal(integers.dequantize(), known.numbers()[rows][:, columns])
        some = checkpoint.scaled(name, 30, 50).dequantize()
        assert torch.equal(some, known.numbers()[rows][30:50, columns])
