"""Families whose layers keep records: against `transformers`, and as they are published."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from ingot.compiler.explain import active_parameters, features
from ingot.errors import CheckpointError, ConfigError, ContradictionError
from ingot.models import registry
from ingot.models.attention_config import AttentionConfig
from ingot.models.blocks.attention import Attention
from ingot.models.blocks.convolution import Convolution
from ingot.models.blocks.experts import Experts, Mixture
from ingot.models.blocks.mamba import Mamba
from ingot.models.blocks.mamba2 import Mamba2
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.layer_config import LayerConfig
from ingot.models.mamba2_config import Mamba2Config
from ingot.models.mlp_config import MlpConfig
from ingot.models.model_dir import ModelDir
from ingot.models.moe_config import MoeConfig
from ingot.models.short_conv_config import ShortConvConfig
from tests.models.test_against_transformers import check, error, load, logits, theirs
from tests.models.test_blueprint import config_of, shapes
from tests.support.checkpoints import edit
from tests.support.core import core
from tests.support.published_records import INFINITY, PUBLISHED
from tests.support.record_models import CASES
from tests.support.tiny_models import save_random

Tensors = dict[str, torch.Tensor]
LFM2, LFM2_MOE, LFM3 = "LiquidAI/LFM2-1.2B", "LiquidAI/LFM2-8B-A1B", "LiquidAI/LFM3-1.7B"
GRANITE, CODESTRAL = "ibm-granite/granite-4.0-h-tiny", "mistralai/Mamba-Codestral-7B-v0.1"
NANO_9B, NANO_30B = (
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
)
MAMBA, FALCON = "state-spaces/mamba-130m-hf", "tiiuae/falcon-mamba-7b"
USUAL = [name for name in CASES if "_" not in name]


@pytest.mark.parametrize("name", core(*USUAL, further=CASES))
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    lengths = (1, 2, 17) if name in USUAL else (1, 2, 17, 130)
    check(save_random(name, tmp_path), lengths)


@pytest.mark.parametrize("name", core("lfm2moe", "nemotronh_latent", "mamba_odd", further=CASES))
def test_a_blueprint_has_the_parameters_of_the_module(name: str) -> None:
    config = config_of(name)
    told, module = registry.blueprint(config), registry.build(config, max_model_len=64)
    assert told.parameters == shapes(module)


@pytest.mark.parametrize("name", ["granitehybrid", "nemotronh", "mamba2", "mamba", "falconmamba"])
def test_the_first_token_still_moves_the_last_logits(name: str, tmp_path: Path) -> None:
    """What the other tests rely on: a state that is lost or swapped would be seen."""
    module, _ = load(save_random(name, tmp_path), 64)
    ids, positions = torch.arange(40)[None], torch.arange(40)[None]
    other = ids.clone()
    other[0, 0] = 77
    with torch.no_grad():
        first, second = (module(each, positions)[:, -1] for each in (ids, other))
    assert error(first, second) > 1e-3


Change = Callable[[nn.Module], object]


def _turned(*names: str) -> Change:
    """Rows of other channels or heads."""

    def change(block: nn.Module) -> None:
        if isinstance(block, Mamba | Mamba2):
            for name in names:
                parameter = getattr(block, name)
                parameter.data = parameter.data.flip(-1)

    return change


def _in_whole(block: nn.Module) -> None:
    """The output of all groups is normalised together."""
    if isinstance(block, Mamba2):
        block.norm.forward = lambda x: nn.functional.rms_norm(  # type: ignore[method-assign]
            x.flatten(2), (x.shape[2] * x.shape[3],), block.norm.weight, block.norm.eps
        ).view(x.shape)


def _without(kind: type[nn.Module], name: str, value: Any) -> Change:
    return lambda block: setattr(block, name, value) if isinstance(block, kind) else None


def _reversed_taps(block: nn.Module) -> None:
    if isinstance(block, Convolution):
        block.weight.data = block.weight.data.flip(0)


class _Nothing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, 9.0)


CHANGES: dict[str, tuple[str, Change]] = {
    "order of taps": ("lfm2", _reversed_taps),
    "gate of heads": ("lfm3", lambda block: isinstance(block, Attention) and _open(block)),
    "rates": ("granitehybrid", _turned("rate")),
    "what skips the matrix": ("mamba2", _turned("skip")),
    "groups of the norm": ("mamba2", _in_whole),
    "rates of channels": ("mamba", _turned("rate")),
    "activation of experts": (
        "nemotronh_experts",
        lambda block: isinstance(block, Experts) and _with_gate(block),
    ),
    "shared experts": ("nemotronh_experts", _without(Mixture, "shared_experts", None)),
}


def _open(block: Attention) -> None:
    if block.gate_proj is not None:
        block.gate_proj.weight.data *= 0.0


def _with_gate(block: Experts) -> None:
    object.__setattr__(block.moe, "gate", "relu")


@pytest.mark.parametrize("change", core("order of taps", "rates", further=CHANGES))
def test_every_part_matters(change: str, tmp_path: Path) -> None:
    """Negative control: with another one the logits are far from those of transformers."""
    name, changed = CHANGES[change]
    module, _ = load(save_random(name, tmp_path), 64)
    expected = logits(theirs(tmp_path), 40)
    assert error(logits(module, 40), expected) < 1e-5
    with torch.no_grad():
        module.apply(lambda block: changed(block) and None)
    assert error(logits(module, 40), expected) > 1e-3


# Parameters in billions, and those that compute a token with all embeddings, as pages round them.
BILLIONS = {
    LFM2: (1.17, 1.17),
    LFM2_MOE: (8.34, 1.56),
    LFM3: (1.73, 1.73),
    GRANITE: (6.94, 1.47),
    NANO_9B: (8.89, 8.89),
    NANO_30B: (31.6, 3.58),
    CODESTRAL: (7.29, 7.29),
    MAMBA: (0.129, 0.129),
    FALCON: (7.27, 7.27),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_makes_a_model_of_its_size(name: str) -> None:
    blueprint = registry.blueprint(registry.parse_config(PUBLISHED[name]))
    whole = sum(map(prod, blueprint.parameters.values()))
    assert (whole / 1e9, active_parameters(blueprint) / 1e9) == pytest.approx(
        BILLIONS[name], rel=0.02
    )


def letters(name: str, **changes: Any) -> str:
    """The kind of each layer: (A)ttention, (W)indow, (C)onvolution, (M)amba, and in lower case what
    follows it: (e)xperts, or a (d)ense MLP."""
    found = ""
    for layer in registry.parse_config({**PUBLISHED[name], **changes}).layers:
        mixer, mlp = layer.mixer, layer.mlp
        if isinstance(mixer, AttentionConfig):
            found += "W" if mixer.window else "A"
        elif mixer is not None:
            found += "C" if isinstance(mixer, ShortConvConfig) else "M"
        if mlp is not None:
            found += "e" if isinstance(mlp, MoeConfig) else "d"
    return found


def test_published_layers() -> None:
    assert letters(LFM2) == "CdCdAdCdCdAdCdCdAdCdAdCdAdCdAdCd"
    assert letters(LFM2_MOE).startswith("CdCdAeCeCeCeAe")
    assert letters(LFM3).startswith("CdCdAdCdWdCdAdCdWd")
    assert letters(GRANITE) == "MeMeMeMeMeAeMeMeMeMe" * 4
    assert letters(NANO_9B).startswith("MdMdMdMMdMdMdMAdMd")
    assert letters(NANO_30B).startswith("MeMeMAeMeMeMA")
    assert (letters(CODESTRAL), letters(MAMBA)) == ("M" * 64, "M" * 24)


@pytest.mark.parametrize(
    ("name", "changes", "kinds"),
    [
        (LFM2, {"layer_types": ["conv", "full_attention"] * 8}, "CdAd" * 8),
        (LFM2, {"layer_types": None, "full_attn_idxs": None}, "Ad" * 16),
        (GRANITE, {"layer_types": None}, "Me" * 40),
        (GRANITE, {"layer_types": None, "layers_block_type": ["mamba"] * 40}, "Me" * 40),
        (GRANITE, {"layer_types": ["linear_attention", "full_attention"] * 20}, "MeAe" * 20),
        (GRANITE, {"num_local_experts": 0}, "MdMdMdMdMdAdMdMdMdMd" * 4),
        (NANO_9B, {"hybrid_override_pattern": "M*-E", "num_hidden_layers": 4}, "MAde"),
        (
            NANO_9B,
            {
                "hybrid_override_pattern": None,
                "num_hidden_layers": None,
                "layers_block_type": ["mamba", "mlp", "attention", "moe", "linear_attention"],
            },
            "MdAeM",
        ),
    ],
)
def test_layers_are_spelled_in_several_ways(name: str, changes: dict[str, Any], kinds: str) -> None:
    assert letters(name, **changes) == kinds


def test_published_keys() -> None:
    lfm2 = registry.parse_config(PUBLISHED[LFM2])
    assert isinstance(lfm2.layers[0].mlp, MlpConfig) and lfm2.layers[0].mlp.size == 8192
    assert lfm2.tie_embeddings and lfm2.ropes[0].theta == 1e6 and lfm2.windows == (0,) * 6
    full, sliding = registry.parse_config(PUBLISHED[LFM3]).ropes
    if full.type != "proportional":
        full, sliding = sliding, full
    assert (full.rotary_dim, full.turned, full.theta) == (128, 32, 1e6)
    assert (sliding.type, sliding.theta) == ("default", 1e4)
    granite = registry.parse_config(PUBLISHED[GRANITE])
    assert granite.ropes == () and granite.kv_bytes_per_token(2) == 4 * 2 * 4 * 128 * 2
    # A state of 48 heads of 128 x 64 and 3 rows of 3328 in each of 36 layers, in float32.
    assert granite.record_bytes == 36 * 4 * (48 * 128 * 64 + 3 * 3328)
    nano = registry.parse_config(PUBLISHED[NANO_30B])
    moe = nano.layers[1].mlp
    assert isinstance(moe, MoeConfig) and (moe.kind, moe.gate) == ("plain", "relu2")
    assert (moe.scale, moe.latent, moe.shared and moe.shared.size) == (2.5, 0, 3712)
    assert "in 6 of 52 layers" in " ".join(features(nano))
    assert "no MLPs" in " ".join(features(registry.parse_config(PUBLISHED[MAMBA])))


@pytest.mark.parametrize(
    ("limit", "bounds"),
    [
        (None, (0.0, math.inf)),
        ([0.0, INFINITY], (0.0, math.inf)),
        ([0.01, 2], (0.01, 2.0)),
        ([1, INFINITY], (1.0, math.inf)),
    ],
)
def test_bounds_of_time_steps(limit: Any, bounds: tuple[float, float]) -> None:
    config = registry.parse_config({**PUBLISHED[CODESTRAL], "time_step_limit": limit})
    mixer = config.layers[0].mixer
    assert isinstance(mixer, Mamba2Config) and (mixer.shortest, mixer.longest) == bounds


def test_a_file_may_have_the_bare_word_infinity(tmp_path: Path) -> None:
    model_dir = save_random("mamba2", tmp_path)
    spelled = registry.load_config(ModelDir.open(model_dir))
    path = model_dir / "config.json"
    text = json.dumps({**json.loads(path.read_text()), "time_step_limit": [0.0, math.inf]})
    assert "Infinity]" in text
    path.write_text(text)
    assert registry.load_config(ModelDir.open(model_dir)) == spelled
    path.write_text(text.replace("Infinity", "NaN"))
    with pytest.raises(ConfigError, match="NaN is not a JSON number"):
        registry.load_config(ModelDir.open(model_dir))


@pytest.mark.parametrize("kind", ["Lfm2", "Lfm2Moe", "Lfm3", "GraniteMoeHybrid", "NemotronH"])
def test_what_a_file_leaves_out_is_as_in_transformers(kind: str) -> None:
    more = {"layer_types": ["conv"] * 32} if kind == "Lfm2Moe" else {}
    _check_defaults(kind, more)


@pytest.mark.parametrize("kind", ["Mamba2", "Mamba", "FalconMamba"])
def test_what_a_file_without_attention_leaves_out(kind: str) -> None:
    _check_defaults(kind, {})


def _check_defaults(kind: str, more: dict[str, Any]) -> None:
    made = getattr(transformers, f"{kind}Config")(**more)
    silent = {"architectures": [f"{kind}ForCausalLM"], "model_type": made.model_type, **more}
    values = {**json.loads(made.to_json_string(use_diff=False)), **silent}
    assert registry.parse_config(values) == registry.parse_config(silent)


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        (LFM2, {"block_use_swiglu": False}, "block_use_swiglu"),
        (LFM2, {"use_pos_enc": False}, "use_pos_enc"),
        (LFM2, {"full_attn_idxs": [16]}, "full_attn_idxs"),
        (LFM2, {"layer_types": ["conv"]}, "layer_types"),
        (LFM2, {"layer_types": ["mamba"] * 16}, "layer_types"),
        (LFM2, {"conv_L_cache": 1}, "conv_L_cache"),
        (LFM2_MOE, {"num_experts": 0}, "num_experts"),
        (LFM3, {"sliding_window": None}, "sliding_window"),
        (GRANITE, {"mamba_n_heads": 47}, "mamba_n_heads"),
        (GRANITE, {"hidden_act": "gelu"}, "hidden_act"),
        (GRANITE, {"position_embedding_type": "alibi"}, "position_embedding_type"),
        (GRANITE, {"normalization_function": "layernorm"}, "normalization_function"),
        (GRANITE, {"time_step_limit": [1.0, 0.5]}, "time_step_limit"),
        (GRANITE, {"time_step_limit": [0.0, "Infinity"]}, "time_step_limit"),
        (NANO_9B, {"hybrid_override_pattern": "M-X"}, "hybrid_override_pattern"),
        (NANO_9B, {"num_hidden_layers": 55}, "num_hidden_layers"),
        (NANO_9B, {"mamba_hidden_act": "relu"}, "mamba_hidden_act"),
        (NANO_9B, {"n_groups": 8, "mamba_n_groups": 4}, "mamba_n_groups"),
        (CODESTRAL, {"num_heads": 100}, "num_heads"),
        (MAMBA, {"rms_norm": False}, "rms_norm"),
        (MAMBA, {"time_step_rank": 0}, "time_step_rank"),
    ],
)
def test_values_that_are_not_built(name: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        registry.parse_config({**PUBLISHED[name], **changes})
    assert caught.value.hint


def test_heads_that_cannot_share_keys() -> None:
    with pytest.raises(ContradictionError, match="128 heads of Mamba-2"):
        registry.parse_config({**PUBLISHED[NANO_9B], "n_groups": 7})


def test_a_layer_has_at_least_one_part() -> None:
    with pytest.raises(ContradictionError, match="neither a mixer nor an MLP"):
        LayerConfig().check()


def test_parts_side_by_side_are_two() -> None:
    config = registry.parse_config(PUBLISHED[MAMBA])
    with pytest.raises(ContradictionError, match="side by side"):
        config.__class__(**{
            **{name: getattr(config, name) for name in config.__dataclass_fields__},
            "placement": "parallel",
        })  # fmt: skip


def parameters(model_dir: Path) -> Tensors:
    config = registry.load_config(ModelDir.open(model_dir))
    module = registry.build(config, max_model_len=64)
    with Checkpoint.open(ModelDir.open(model_dir), config, module) as checkpoint:
        return {name: checkpoint.read(name).clone() for name, _ in module.named_parameters()}


def renamed(*changes: tuple[str, str]) -> Callable[[Tensors], None]:
    """Gives tensors other names."""

    def rename(tensors: Tensors) -> None:
        for old, new in changes:
            found = [name for name in tensors if old in name]
            assert found, old
            for name in found:
                tensors[name.replace(old, new)] = tensors.pop(name)

    return rename


def stacked(prefix: str, **parts: tuple[str, ...]) -> Callable[[Tensors], None]:
    """Puts experts that have tensors of their own into one for all, each with its parts."""

    def stack(tensors: Tensors) -> None:
        layers = {n.split(prefix)[0] for n in tensors if prefix in n}
        for layer in layers:
            count = len(
                {n.split(prefix)[1].split(".")[0] for n in tensors if f"{layer}{prefix}" in n}
            )
            for whole, each in parts.items():
                tensors[f"{layer}{prefix}{whole}"] = torch.stack([
                    torch.cat([tensors.pop(f"{layer}{prefix}{e}.{part}.weight") for part in each])
                    for e in range(count)
                ])  # fmt: skip

    return stack


@pytest.mark.parametrize(
    ("name", "spell"),
    [
        ("lfm3", renamed((".self_attn.gate_proj.", ".self_attn.g_proj."))),
        ("lfm2moe", stacked("feed_forward.experts.", gate_up_proj=("w1", "w3"), down_proj=("w2",))),
        (
            "granitehybrid_moe",
            renamed(
                ("block_sparse_moe.input_linear.weight", "block_sparse_moe.experts.gate_up_proj"),
                ("block_sparse_moe.output_linear.weight", "block_sparse_moe.experts.down_proj"),
                ("block_sparse_moe.router.layer.weight", "block_sparse_moe.router.weight"),
            ),
        ),
        (
            "nemotronh_experts",
            stacked("mixer.experts.", up_proj=("up_proj",), down_proj=("down_proj",)),
        ),
        ("nemotronh", renamed(("backbone.", "model."))),
    ],
)
def test_other_spellings_of_tensors_are_the_same_model(
    name: str, spell: Callable[[Tensors], None], tmp_path: Path
) -> None:
    expected = parameters(save_random(name, tmp_path))
    edit(tmp_path, spell)
    found = parameters(tmp_path)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[each], tensor) for each, tensor in expected.items())


def test_layers_that_predict_further_tokens_are_not_read(tmp_path: Path) -> None:
    save_random("nemotronh", tmp_path)
    edit(tmp_path, lambda tensors: tensors.update({"mtp.layers.0.norm.weight": torch.ones(3)}))
    parameters(tmp_path)
    edit(tmp_path, lambda tensors: tensors.update({"backbone.extra.weight": torch.ones(3)}))
    with pytest.raises(CheckpointError, match=r"backbone\.extra"):
        parameters(tmp_path)


def test_rates_of_a_half_precision_file_are_read_unrounded(tmp_path: Path) -> None:
    save_random("mamba2_odd", tmp_path, "bfloat16")
    rates = torch.linspace(-6.0, 1.0, 6)
    prefix, ours = "backbone.layers.0.mixer", "model.layers.0.self_attn"
    own = {f"{prefix}.A_log": rates, f"{prefix}.dt_bias": rates / 3}
    edit(tmp_path, lambda tensors: tensors.update(own))
    found = parameters(tmp_path)
    assert torch.equal(found[f"{ours}.rate"], -rates.exp())
    # The product with the input has a bias, which was rounded; the sum of the two is not.
    edit(tmp_path, lambda tensors: tensors[f"{prefix}.in_proj.bias"].mul_(0.0))
    assert torch.equal(parameters(tmp_path)[f"{ours}.dt_proj.bias"], rates / 3)
