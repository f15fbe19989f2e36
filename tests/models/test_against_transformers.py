"""The plain modules against `transformers` in float32, for every family and option."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint, materialize
from ingot.models.config import ModelConfig
from ingot.models.model_dir import ModelDir
from tests.support import dense_models as dense
from tests.support.core import core
from tests.support.tiny_models import CASES, ROPES, TRAINED, VOCAB_SIZE, save_random

# The longest is beyond every window and every trained length of the cases.
LENGTHS = (1, 2, 15, 16, 17, 300)
LIMIT = 1e-5


def load(model_dir: Path, max_model_len: int) -> tuple[nn.Module, ModelConfig]:
    config = registry.load_config(ModelDir.open(model_dir))
    module = registry.build(config, max_model_len=max_model_len)
    with Checkpoint.open(ModelDir.open(model_dir), config, module) as checkpoint:
        return materialize(module, checkpoint), config


def theirs(model_dir: Path) -> nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def logits(model: nn.Module, length: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(length)
    ids = torch.randint(VOCAB_SIZE, (1, length), generator=rng)
    positions = torch.arange(length)[None]
    with torch.no_grad():
        if isinstance(model, transformers.PreTrainedModel):
            return model(input_ids=ids, position_ids=positions, use_cache=False).logits
        return model(ids, positions)


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


def check(model_dir: Path, lengths: tuple[int, ...] = LENGTHS) -> None:
    reference = theirs(model_dir)
    built: dict[int, nn.Module] = {}
    for length in lengths:
        # dynamic and longrope are fixed by the longest sequence; elsewhere it has no effect.
        longest = max(length, TRAINED)
        if longest not in built:
            built[longest], _ = load(model_dir, longest)
        expected = logits(reference, length)
        assert expected.std() > 0.1, "degenerate logits prove nothing"
        assert error(logits(built[longest], length), expected) <= LIMIT


@pytest.mark.cases(core=24, thorough=24)
@pytest.mark.parametrize(
    "name", core(*sorted(CASES), "cohere", "phi3", further=dense.USUAL, slow=dense.CASES)
)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    check(save_random(name, tmp_path))


@pytest.mark.cases(core=4)
@pytest.mark.parametrize("name", ["llama", *(f"llama_{rope}" for rope in ROPES), "qwen2_yarn"])
def test_older_spelling_of_rotary_parameters(name: str, tmp_path: Path) -> None:
    newer = registry.load_config(ModelDir.open(save_random(name, tmp_path)))
    older_dir = save_random(name, tmp_path, old_rope_spelling=True)
    assert registry.load_config(ModelDir.open(older_dir)) == newer
    check(older_dir, (17, 300))


@pytest.mark.parametrize(
    ("name", "lengths"),
    [("llama_yarn", (17, 300)), ("llama_llama3", (17, 300)), ("llama_longrope", (300,))],
)
def test_a_trained_length_beside_the_rope_object_wins(
    name: str, lengths: tuple[int, ...], tmp_path: Path
) -> None:
    inside = registry.load_config(ModelDir.open(save_random(name, tmp_path))).ropes[0]
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "original_max_position_embeddings": 32}))
    outside = registry.load_config(ModelDir.open(tmp_path)).ropes[0]
    assert outside.original_max_position_embeddings == 32
    assert inside.original_max_position_embeddings == TRAINED
    check(tmp_path, lengths)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["qwen3", "gemma2_width_68", "gpt2"])
def test_half_precision_checkpoints_are_widened(name: str, dtype: str, tmp_path: Path) -> None:
    check(save_random(name, tmp_path, dtype), (17,))


@pytest.mark.parametrize("name", ["qwen3_tied", "mistral", "gemma2", "gpt2"])
def test_sharded_checkpoints(name: str, tmp_path: Path) -> None:
    save_random(name, tmp_path, shard_kilobytes=60)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    check(tmp_path, (17,))


@pytest.mark.cases(core=6)
@pytest.mark.parametrize(
    ("name", "plain"),
    [
        *((f"llama_{rope}", "llama") for rope in ("yarn", "longrope", "llama3", "linear")),
        ("mistral", "mistral_full"),
        ("qwen2", "llama"),
        ("gemma2", "gemma2_full"),
        ("gemma2", "gemma2_layer_types"),
        ("gemma2", "gemma2_no_caps"),
        ("gemma2", "gemma2_silu"),
        ("gemma2_low_caps", "gemma2"),
        ("gemma2_linear", "gemma2"),
        ("gpt2", "gpt2_scales"),
        ("gpt2", "gpt2_unscaled"),
        ("gpt2", "gpt2_heads"),
        ("gpt2", "gpt2_relu"),
        ("gpt2_eps", "gpt2"),
    ],
)
def test_every_option_matters(name: str, plain: str, tmp_path: Path) -> None:
    """Negative control: without the option the logits are far from those of transformers."""
    save_random(name, tmp_path / "with")
    save_random(plain, tmp_path / "without")
    without, _ = load(tmp_path / "without", 300)
    assert error(logits(without, 300), logits(theirs(tmp_path / "with"), 300)) > 1e-3


def test_dynamic_frequencies_depend_on_the_longest_sequence(tmp_path: Path) -> None:
    save_random("llama_dynamic", tmp_path)
    short, _ = load(tmp_path, TRAINED)
    long, _ = load(tmp_path, 300)
    assert error(logits(short, 50), logits(long, 50)) > 1e-3
