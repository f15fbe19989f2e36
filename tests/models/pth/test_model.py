"""A file of BlinkDL's as a model directory: what its tensors tell, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ingot.cli.main import main
from ingot.errors import CheckpointError, TokenizerError, UnsupportedModelError
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint, materialize
from ingot.models.model_dir import ModelDir
from ingot.models.single_files import single_in
from tests.support import rwkv_models
from tests.support.checkpoints import plain_module
from tests.support.rwkv_reference import Reference

TOKENS = torch.randint(320, (40,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture(scope="module")
def tensors() -> rwkv_models.Tensors:
    return rwkv_models.tensors()


def saved(folder: Path, tensors: rwkv_models.Tensors, **more: torch.Tensor) -> Path:
    return rwkv_models.save_pth(folder / "model.pth", {**tensors, **more})


def test_sizes_are_those_of_the_tensors(tensors: rwkv_models.Tensors, tmp_path: Path) -> None:
    config = registry.load_config(ModelDir.open(saved(tmp_path, tensors)))
    first, *others = (layer.mixer for layer in config.layers)
    assert (config.hidden_size, config.num_layers, config.vocab_size) == (64, 3, 320)
    assert (first.num_heads, first.head_dim, first.norm_eps) == (4, 16, 64e-5)
    assert (first.decay_rank, first.rate_rank, first.gate_rank) == (8, 12, 20)
    assert first.value_rank == 0 and {mixer.value_rank for mixer in others} == {4}
    assert config.layers[0].mlp.size == 160 and config.eos_token_ids == (0,)


def test_it_is_the_model_of_the_paper(tensors: rwkv_models.Tensors, tmp_path: Path) -> None:
    model_dir = ModelDir.open(saved(tmp_path, tensors))
    config = registry.load_config(model_dir)
    module = registry.build(config, max_model_len=64)
    with Checkpoint.open(model_dir, config, module) as checkpoint:
        materialize(module, checkpoint)
    with torch.no_grad():
        got = module(torch.tensor([TOKENS]), torch.arange(len(TOKENS))[None])[0].numpy()
    expected = Reference({name: t.numpy() for name, t in tensors.items()}).logits(TOKENS)
    assert np.linalg.norm(got - expected) < 2e-5 * np.linalg.norm(expected)


OTHERS = {
    "blocks.0.att.time_maa_x": "RWKV-6",
    "blocks.0.att.time_mix_k": "RWKV-4 or RWKV-5",
    "blocks.0.ffn.time_mix_k": "RWKV-4 or RWKV-5",
    "blocks.0.att.time_decay": "RWKV-4, RWKV-5 or RWKV-6",
    "blocks.1.ffn.s_emb.weight": "DeepEmbed",
    "blocks.1.ffn.s1": "DeepEmbed",
    "blocks.1.att.qq.weight": "attention",
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_versions_are_refused_by_name(
    name: str, tensors: rwkv_models.Tensors, tmp_path: Path
) -> None:
    path = saved(tmp_path, tensors, **{name: torch.ones(4)})
    with pytest.raises(UnsupportedModelError, match=OTHERS[name]) as error:
        ModelDir.open(path)
    assert name in error.value.found and "version 7" in error.value.hint


def test_another_model_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = rwkv_models.save_pth(tmp_path / "model.pth", {"layers.0.w": torch.ones(2)})
    with pytest.raises(CheckpointError, match=r"no RWKV-7 model: it lacks blocks\.0\.att\.r_k"):
        ModelDir.open(path)


@pytest.mark.parametrize("lost", ["blocks.1.att.w1", "head.weight", "blocks.2.ffn.x_k"])
def test_a_tensor_that_is_missing_is_named(
    lost: str, tensors: rwkv_models.Tensors, tmp_path: Path
) -> None:
    path = saved(tmp_path, {n: t for n, t in tensors.items() if n != lost})
    with pytest.raises(CheckpointError, match="lacks"):
        plain_module(path)


def test_a_folder_with_one_file_is_that_file(tensors: rwkv_models.Tensors, tmp_path: Path) -> None:
    path = saved(tmp_path, tensors)
    assert single_in(tmp_path) == path
    saved(tmp_path, tensors).rename(tmp_path / "rwkv7-other.pth")
    saved(tmp_path, tensors)
    assert single_in(tmp_path) is None
    with pytest.raises(CheckpointError, match="a folder of RWKV models"):
        ModelDir.open(tmp_path)


def test_the_vocabulary_beside_it_is_its_tokenizer(
    tensors: rwkv_models.Tensors, tmp_path: Path
) -> None:
    path = saved(tmp_path, tensors)
    assert not ModelDir.open(path).has("tokenizer.json")
    with pytest.raises(TokenizerError, match=r"has no tokenizer\.json"):
        ModelDir.open(path).check()
    (tmp_path / "rwkv_vocab_v1.txt").write_bytes(rwkv_models.vocabulary([b"ab"]))
    model_dir = ModelDir.open(path)
    model_dir.check()
    vocabulary = json.loads(model_dir.read("tokenizer.json", 2**20))["model"]["vocab"]
    assert vocabulary["ab"] == 257
    assert json.loads(model_dir.read("generation_config.json", 2**20))["stop_strings"]


def test_a_file_with_the_usual_rows_has_the_usual_vocabulary(tmp_path: Path) -> None:
    made = rwkv_models.tensors(layers=1, width=16, inner=16, rows=65536)
    vocabulary = json.loads(ModelDir.open(saved(tmp_path, made)).read("tokenizer.json", 2**24))[
        "model"
    ]["vocab"]
    assert len(vocabulary) == 65530


@pytest.mark.parametrize("verb", ["compile", "explain"])
def test_verbs_say_what_a_file_is(verb: str, tmp_path: Path, capsys) -> None:
    path = rwkv_models.save_pth(tmp_path / "model.pth", {"layers.0.w": torch.ones(2)})
    assert main([verb, str(path)]) == 2
    assert "no RWKV-7 model" in capsys.readouterr().err
