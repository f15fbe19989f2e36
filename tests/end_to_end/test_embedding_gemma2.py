"""EmbeddingGemma 2, from published files to kernels, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

import ingot
from ingot.artifact.programs import ENCODE, TOKENS, Program
from ingot.errors import ConfigError
from ingot.models import registry
from ingot.models.config import ModelConfig
from ingot.models.model_dir import ModelDir
from tests.end_to_end.test_text_models import MOST, interpreted
from tests.support.core import core
from tests.support.text_models import KINDS, TEXTS, rows, saved, with_modules, write

SIZES = KINDS["embedding_gemma2"].sizes
TOWER = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
PLACES = {"image_token_id": 2047, "audio_token_id": 2046, "video_token_id": 2045}


def whole() -> Any:
    """A model that also takes images."""
    torch.manual_seed(0)
    made = transformers.EmbeddingGemma2Model(
        transformers.EmbeddingGemma2Config(
            text_config=dict(SIZES), vision_config=TOWER, audio_config=None, **PLACES
        )
    ).eval()
    for parameter in made.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return made


def compiled(folder: Path, out: Path, **options: Any) -> Path:
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 8}
    ingot.compile(folder, out, **limits, **options)
    return out


def error(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("program", [ENCODE, TOKENS], ids=lambda program: program.name)
def test_vectors_are_those_of_a_model_that_also_takes_images(
    program: Program, tmp_path: Path
) -> None:
    """Of texts and of their tokens, which are projected before they are pooled."""
    judge = whole()
    folder = with_modules(saved(judge, tmp_path / "m"), "max", normalize=False)
    assert any(name.startswith("vision_tower.") for name in load_file(folder / "model.safetensors"))
    found = [rows(judge, text) for text in TEXTS]
    wanted = (
        torch.stack([each.amax(0) for each in found]) if program is ENCODE else torch.cat(found)
    )
    _, got = interpreted(folder, TEXTS, program=program)
    assert error(got.numpy(), wanted.numpy()) < MOST


@pytest.mark.thorough
def test_kernels_give_the_same_vectors(tmp_path: Path) -> None:
    judge = whole()
    folder = with_modules(saved(judge, tmp_path / "m"), "max", normalize=False)
    wanted = [rows(judge, text).numpy() for text in TEXTS]
    out = compiled(folder, tmp_path / "out", programs=["encode", "tokens"])
    with ingot.Embedder(out) as embedder:
        assert error(embedder.encode(TEXTS), np.stack([each.max(0) for each in wanted])) < MOST
        of_tokens = np.concatenate(embedder.encode_tokens(TEXTS))
        assert error(of_tokens, np.concatenate(wanted)) < MOST
        alone = [embedder.encode([text])[0] for text in TEXTS]
        assert np.array_equal(embedder.encode(TEXTS[::-1]), alone[::-1])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "least"), [({"dtype": "bfloat16"}, 0.999), ({"quantize": "int8"}, 0.998)]
)
def test_rounded_vectors_point_where_those_of_transformers_do(
    options: dict, least: float, tmp_path: Path
) -> None:
    judge = KINDS["embedding_gemma2"].build("Model")
    out = compiled(with_modules(saved(judge, tmp_path / "m")), tmp_path / "out", **options)
    wanted = torch.stack([rows(judge, text).mean(0) for text in TEXTS])
    with ingot.Embedder(out) as embedder:
        got = torch.tensor(embedder.encode(TEXTS))
    cosines = torch.nn.functional.cosine_similarity(got, wanted)
    assert least < cosines.min() < 1 - 1e-6


@pytest.mark.parametrize(
    ("change", "value"),
    core(
        ("sliding_window", 3),
        further=[
            ("num_attention_heads", None),  # nothing is changed
            ("rms_norm_eps", 1e-4),
            ("hidden_activation", "gelu"),
        ],
    ),
)
def test_other_options_give_other_vectors(change: str, value: Any, tmp_path: Path) -> None:
    """So an option that was read wrongly would show."""
    judge = KINDS["embedding_gemma2"].build("Model")
    wanted = torch.stack([rows(judge, text).mean(0) for text in TEXTS])
    folder = with_modules(saved(judge, tmp_path))
    path = folder / "config.json"
    if value is not None:
        write(path, {**json.loads(path.read_text()), change: value})
    _, got = interpreted(folder, TEXTS)
    assert (error(got.numpy(), wanted.numpy()) < MOST) == (value is None)


def config_of(values: dict[str, Any]) -> ModelConfig:
    return registry.parse_config({"architectures": ["EmbeddingGemma2TextModel"], **values})


def test_a_silent_file_says_what_transformers_takes_it_for() -> None:
    full = transformers.EmbeddingGemma2TextConfig().to_dict()
    silent = config_of({"bos_token_id": 2, "eos_token_id": 1})
    assert silent == config_of({**full, "architectures": ["EmbeddingGemma2TextModel"]})
    sizes = {(layer.mixer.num_kv_heads, layer.mixer.head_dim) for layer in silent.layers}
    assert sizes == {(2, 256), (1, 512)} and set(silent.windows) == {0, 513}


def test_heads_of_kinds_are_heads_of_layers(tmp_path: Path) -> None:
    folder = saved(KINDS["embedding_gemma2"].build("Model"), tmp_path)
    found = registry.load_config(ModelDir.open(folder))
    values = json.loads((folder / "config.json").read_text())
    del values["per_layer_config"]
    kinds = {"global_head_dim": 20, "num_global_key_value_heads": 1}
    write(folder / "config.json", {**values, **kinds})
    assert registry.load_config(ModelDir.open(folder)) == found
    assert [layer.mixer.head_dim for layer in found.layers] == [12, 20, 20]


def test_the_last_layer_is_full() -> None:
    config = config_of({"num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 3})
    assert config.windows == (513, 513, 0)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"per_layer_config": {"1": {"head_dim": 64}}}, "other heads in layers of one kind"),
        ({"per_layer_config": {"5": {"window": 3}}}, "window"),
        ({"per_layer_config": {"7": {"head_dim": 64}}}, "7"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"use_bidirectional_attention": "vision"}, "use_bidirectional_attention"),
    ],
)
def test_what_nothing_stands_for_is_refused(keys: dict, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        config_of({"num_hidden_layers": 6, **keys})
