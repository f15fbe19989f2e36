"""RWKV-7 against the paper's formulas and the package `rwkv`, in every way that fla stores it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ingot.errors import CheckpointError, ConfigError
from ingot.models import registry
from ingot.models.config import ModelConfig
from ingot.models.model_dir import ModelDir
from tests.end_to_end.support import relative_error
from tests.models.test_blueprint import shapes
from tests.support import rwkv_models
from tests.support.checkpoints import module_logits, plain_module
from tests.support.rwkv_reference import Reference

TOKENS = torch.randint(320, (60,), generator=torch.Generator().manual_seed(1)).tolist()
HEAD_DIM, HEADS_EPS = 32, 32e-5
# The first logits after tokens 0, 30 and 59 by the package `rwkv` 0.8.32, "cpu fp32", of the same
# tensors in a file of BlinkDL's; and after token 19 of a sequence that begins with `states`.
PACKAGE = {
    0: [-1.154974, 0.473429, 1.017374, 1.023944, 1.005936, 1.161315],
    30: [-1.310464, -1.020465, 0.24696, -0.739852, -1.933225, 0.056628],
    59: [-0.901963, 0.498939, -1.447338, -0.472713, -0.564155, 0.251256],
}
FROM_STATES = [-0.18735, 0.75582, 0.107537, 0.799942, -0.796542, -0.067063]


@pytest.fixture(scope="module")
def tensors() -> rwkv_models.Tensors:
    return rwkv_models.tensors(head_dim=HEAD_DIM)


@pytest.fixture
def folder(tensors: rwkv_models.Tensors, tmp_path: Path) -> Path:
    return rwkv_models.save_fla(tmp_path / "model", tensors)


def oracle(tensors: rwkv_models.Tensors, heads_eps: float = HEADS_EPS) -> Reference:
    return Reference({name: t.numpy() for name, t in tensors.items()}, heads_eps)


def config_of(folder: Path) -> ModelConfig:
    return registry.load_config(ModelDir.open(folder))


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_formulas_are_those_of_the_package(tensors: rwkv_models.Tensors) -> None:
    """What all other tests are held to."""
    logits = oracle(tensors, 64e-5).logits(TOKENS)
    for token, expected in PACKAGE.items():
        assert relative_error(logits[token, :6], np.array(expected)) < 2e-5
    model, rng = oracle(tensors, 64e-5), torch.Generator().manual_seed(3)
    state = model.begin()
    for i, (before, _, below) in enumerate(state):
        matrices = torch.randn(2, HEAD_DIM, HEAD_DIM, generator=rng).numpy().astype(np.float64)
        state[i] = before, matrices, below
    logits = model.logits(TOKENS[:20], state)
    assert relative_error(logits[19, :6], np.array(FROM_STATES)) < 2e-5


def test_the_first_token_still_moves_the_last_logits(tensors: rwkv_models.Tensors) -> None:
    """A state that is lost or swapped would be seen."""
    other = [(TOKENS[0] + 1) % 320, *TOKENS[1:]]
    one, two = (oracle(tensors).logits(tokens)[-1] for tokens in (TOKENS, other))
    assert relative_error(two, one) > 1e-2


def test_logits_equal_those_of_the_formulas(tensors: rwkv_models.Tensors, folder: Path) -> None:
    got = module_logits(plain_module(folder), TOKENS)
    assert relative_error(got, oracle(tensors).logits(TOKENS)) < 2e-5


def test_a_blueprint_has_the_parameters_of_the_module(folder: Path) -> None:
    config = config_of(folder)
    told, module = registry.blueprint(config), registry.build(config, max_model_len=64)
    assert told.parameters == shapes(module)


def mixed_in_one(made: rwkv_models.Tensors) -> None:
    """As fla's first conversions have it."""
    for i in range(3):
        rows = [made.pop(f"model.layers.{i}.attn.x_{name}").reshape(-1) for name in "rwkvag"]
        made[f"model.layers.{i}.attn.x_x"] = torch.stack(rows)


def as_vectors(made: rwkv_models.Tensors) -> None:
    for name in [n for n in made if ".attn.x_" in n]:
        made[name] = made[name].reshape(-1)


def with_three_dimensions(made: rwkv_models.Tensors) -> None:
    for name in [n for n in made if n.endswith((".k_k", ".k_a", "ffn.x_k", "lora.2.bias"))]:
        made[name] = made[name].reshape(1, 1, -1)


def with_values_in_the_first_layer(made: rwkv_models.Tensors) -> None:
    """Nothing reads them."""
    for name in ("lora.0.weight", "lora.2.weight", "lora.2.bias"):
        made[f"model.layers.0.attn.v_lora.{name}"] = torch.ones(3, 3)


@pytest.mark.parametrize(
    "change",
    [mixed_in_one, as_vectors, with_three_dimensions, with_values_in_the_first_layer],
)
def test_other_spellings_are_the_same_model(
    change: Callable[[rwkv_models.Tensors], None], tensors: rwkv_models.Tensors, folder: Path
) -> None:
    expected = module_logits(plain_module(folder), TOKENS[:9])
    made = load_file(folder / "model.safetensors")
    change(made)
    save_file(made, folder / "model.safetensors")
    assert np.array_equal(module_logits(plain_module(folder), TOKENS[:9]), expected)


LOW = {f"{name}_low_rank_dim": None for name in ("decay", "a", "v", "gate")}


@pytest.mark.parametrize(
    "changes",
    [
        {"intermediate_size": None, "hidden_ratio": 2.5},
        {"intermediate_size": None, "hidden_ratio": None},
        {"num_heads": None},
        {"head_dim": None, "num_heads": 2},
        {"value_dim": 64},
        {"value_dim": None},
        {"norm_bias": True, "fuse_norm": True, "attn_mode": "fused_recurrent"},
        {"v_low_rank_dim": 16, **LOW},
    ],
)
def test_other_configs_are_the_same_model(changes: dict[str, Any], folder: Path) -> None:
    expected = config_of(folder)
    change_config(folder, **changes)
    assert config_of(folder) == expected


def test_ranks_without_tensors_follow_from_the_width(folder: Path) -> None:
    change_config(folder, **LOW, hidden_size=2048, head_dim=64, num_heads=32, value_dim=2048)
    (folder / "model.safetensors").unlink()
    mixer = config_of(folder).layers[1].mixer
    found = (mixer.decay_rank, mixer.rate_rank, mixer.value_rank, mixer.gate_rank)
    assert found == (128, 128, 64, 224)  # as fla has it


def test_without_the_first_norm_embeddings_are_as_they_are(
    tensors: rwkv_models.Tensors, folder: Path
) -> None:
    change_config(folder, norm_first=False)
    made = load_file(folder / "model.safetensors")
    for kind in ("weight", "bias"):
        made.pop(f"model.layers.0.pre_norm.{kind}")
    save_file(made, folder / "model.safetensors")
    model = oracle(tensors)
    norm = model.norm
    model.norm = lambda name, x: x if name == "blocks.0.ln0" else norm(name, x)  # type: ignore[method-assign]
    got = module_logits(plain_module(folder), TOKENS[:20])
    assert relative_error(got, model.logits(TOKENS[:20])) < 2e-5


def test_norms_may_have_no_bias(tensors: rwkv_models.Tensors, folder: Path) -> None:
    change_config(folder, norm_bias=False)
    made = load_file(folder / "model.safetensors")
    biases = [n for n in made if n.endswith("norm.bias") and "g_norm" not in n]
    save_file({n: t for n, t in made.items() if n not in biases}, folder / "model.safetensors")
    flat = {n: t * 0 if ".ln" in n and n.endswith("bias") else t for n, t in tensors.items()}
    flat = {n: tensors[n] if "ln_x" in n else t for n, t in flat.items()}
    flat["ln_out.bias"] = flat["ln_out.bias"] * 0
    got = module_logits(plain_module(folder), TOKENS[:20])
    assert relative_error(got, oracle(flat).logits(TOKENS[:20])) < 2e-5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attn": {"layers": [1], "num_heads": 2}}, "attn = "),
        ({"hidden_act": "relu"}, "hidden_act = 'relu'"),
        ({"value_dim": [64, 128, 64]}, r"value_dim = \[64, 128, 64\]"),
        ({"value_dim": 32}, "value_dim = 32"),
        ({"num_heads": 4}, "num_heads = 4"),
        ({"head_dim": 48, "num_heads": None}, "hidden_size 64 is not a multiple of head_dim 48"),
        ({"conv_size": 4}, "the unknown key conv_size"),
    ],
)
def test_variants_are_refused_by_name(changes: dict[str, Any], said: str, folder: Path) -> None:
    change_config(folder, **changes)
    with pytest.raises(ConfigError, match=said):
        config_of(folder)


def test_a_tensor_that_is_missing_is_named(folder: Path) -> None:
    made = load_file(folder / "model.safetensors")
    made.pop("model.layers.1.attn.k_a")
    save_file(made, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks model\.layers\.1\.attn\.k_a"):
        plain_module(folder)


def test_a_folder_with_the_vocabulary_has_a_tokenizer(folder: Path) -> None:
    """Whose own code is never run."""
    (folder / "rwkv_vocab_v20230424.txt").write_bytes(rwkv_models.vocabulary([b"ab"]))
    (folder / "tokenizer_config.json").write_text('{"chat_template": "their own"}')
    model_dir = ModelDir.open(folder)
    model_dir.check()
    assert model_dir.has("generation_config.json") and not model_dir.has("chat_template.jinja")
    assert model_dir.json("tokenizer.json")["model"]["vocab"]["ab"] == 257
    assert model_dir.json("tokenizer_config.json") == {"chat_template": "their own"}


def test_a_world_model_ends_at_token_0(folder: Path) -> None:
    change_config(folder, vocab_size=65536)
    assert config_of(folder).eos_token_ids == (2, 0)
