"""The benchmark's model directories: exact shapes, readable, the same for the same seed."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from bench import make_model
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint, materialize
from ingot.models.model_dir import ModelDir

SIZES = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "qwen2.5-0.5b": 494_032_768,
    "mistral-7b": 7_248_023_552,
}


@pytest.mark.parametrize("shape", sorted(SIZES))
def test_shapes_have_the_published_sizes(shape: str, tmp_path: Path) -> None:
    make_model.write_config(tmp_path, shape)
    module = registry.build(registry.load_config(ModelDir.open(tmp_path)), max_model_len=64)
    assert sum(p.numel() for p in module.parameters()) == SIZES[shape]


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("shard_bytes", [make_model.SHARD_BYTES, 200_000])
def test_models_are_whole_sane_and_reproducible(
    shard_bytes: int, repeat: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_model, "ELEMENTS_AT_ONCE", 10_000)
    make = partial(make_model.make_model, shape="tiny", shard_bytes=shard_bytes, repeat=repeat)
    sizes = make(tmp_path / "a", seed=3)
    make(tmp_path / "b", seed=3)
    make(tmp_path / "c", seed=4)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert sizes["shards"] == sum(name.endswith(".safetensors") for name in files)
    a, b, c = ([(tmp_path / kind / f).read_bytes() for f in files] for kind in "abc")
    assert a == b
    changed = [f for f, one, other in zip(files, a, c, strict=True) if one != other]
    assert changed == [name for name in files if name.endswith(".safetensors")]
    config = registry.load_config(ModelDir.open(tmp_path / "a"))
    assert config.checkpoint_dtype == "bfloat16" and config.eos_token_ids == (257,)
    module = registry.build(config, max_model_len=32)
    with Checkpoint.open(ModelDir.open(tmp_path / "a"), config, module) as checkpoint:
        materialize(module, checkpoint)
    with torch.no_grad():
        logits = module(torch.arange(32)[None], torch.arange(32)[None])
    assert 0.01 < logits.std() < 10


def test_matrices_behind_the_drawn_bytes_are_zeros(tmp_path: Path) -> None:
    make_model.make_model(tmp_path / "all", "tiny")
    make_model.make_model(tmp_path / "some", "tiny", drawn_bytes=2 * 512 * 128 + 1)
    drawn, some = (load_file(tmp_path / kind / "model.safetensors") for kind in ("all", "some"))
    matrices = {name: tensor for name, tensor in some.items() if tensor.ndim == 2}
    first = ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"]
    assert [name for name, tensor in matrices.items() if tensor.any()] == first
    assert all(some[name].equal(drawn[name]) for name in first)
    assert len(some) == len(drawn) and all(some[name].any() for name in set(some) - set(matrices))


def test_tokenizer_fits_and_round_trips(tmp_path: Path) -> None:
    make_model.make_model(tmp_path, "tiny")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "naïve café 日本 \x00 \n\t 🙂"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() == 258 and tokenizer.token_to_id("<|eos|>") == 257


def test_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "given.json"
    given.write_text("{}")
    out = tmp_path / "out"
    monkeypatch.setattr(
        sys, "argv", ["make_model", str(out), "--shape", "tiny", "--tokenizer", str(given)]
    )
    make_model.main()
    assert '"parameters": ' in capsys.readouterr().out
    assert (out / "tokenizer.json").read_text() == "{}"


def test_with_words_every_token_has_a_text_of_its_own(tmp_path: Path) -> None:
    make_model.write_byte_tokenizer(tmp_path, 300, words=True)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 300
    texts = [tokenizer.decode([i], skip_special_tokens=False) for i in range(300)]
    assert texts[256] == "w256" and all(texts) and len({*texts[256:]}) == 44
    assert tokenizer.encode("w256").ids == tokenizer.encode("w2").ids + tokenizer.encode("56").ids


def test_without_words_a_token_that_is_no_byte_has_none(tmp_path: Path) -> None:
    make_model.write_byte_tokenizer(tmp_path, 300)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.decode([270], skip_special_tokens=False) == ""
