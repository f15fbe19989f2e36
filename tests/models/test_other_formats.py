"""Models in the formats of other programs: every way in says what they are and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.cli.main import main
from ingot.errors import CheckpointError
from ingot.models.other_formats import other_format, refuse_other_format

FILES = {
    "pytorch_model.bin": ("Python pickles", "safe_serialization=True"),
    "model.onnx": ("a model in ONNX", "by the path of the .onnx file"),
    "model.pt": ("Python pickles", "save_pretrained"),
    "model.ckpt": ("Python pickles", "save_pretrained"),
    "adapter_config.json": ("a LoRA adapter", "merge_and_unload"),
}


@pytest.mark.parametrize("in_folder", [False, True])
@pytest.mark.parametrize("verb", ["compile", "explain", "run"])
@pytest.mark.parametrize("name", FILES)
def test_each_verb_says_what_it_is(name, verb, in_folder, tmp_path: Path, capsys) -> None:
    (tmp_path / name).write_bytes(b"x")
    model = tmp_path if in_folder else tmp_path / name
    assert main([verb, str(model), *(["hello"] if verb == "run" else [])]) == 2
    error = capsys.readouterr().err
    what, advice = FILES[name]
    assert f"error: {model} is {what}" in error or f"{model} is a PyTorch checkpoint" in error
    assert what in error and advice in error


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["adapter_config.json"], "a LoRA adapter, which is no whole model: adapter_config.json"),
        (["adapter_model.safetensors"], "a LoRA adapter"),
        (["adapter_model.bin"], "a LoRA adapter, which is no whole model: adapter_model.bin"),
        (["b.gguf", "a.gguf", "pytorch_model.bin"], "llama.cpp: a.gguf, b.gguf"),
        (
            ["model.onnx", "model.onnx.data", "pytorch_model.bin"],
            "x is a model in ONNX: model.onnx",
        ),
        (["pytorch_model-00001-of-00002.bin"], "of Python pickles: pytorch_model-00001-of"),
        (["pytorch_model.bin.index.json"], "of Python pickles: pytorch_model.bin.index.json"),
        (["consolidated.00.pth"], "of Python pickles"),
        (["rwkv7-a.pth", "rwkv7-b.pth"], "a folder of RWKV models: rwkv7-a.pth, rwkv7-b.pth"),
        (["model.pkl"], "of Python pickles"),
        (["model.pt"], "of Python pickles"),
        (["last.ckpt"], "of Python pickles"),
    ],
)
def test_formats_by_the_names_of_their_files(names: list[str], found: str) -> None:
    error = other_format("x", ["config.json", "tokenizer.json", *names])
    assert error is not None and error.found.startswith("x is a") and found in error.found


@pytest.mark.parametrize(
    "name",
    ["weights.safetensors", "model.gguf.txt", "tokenizer.bin.json", "adapter.json", "bin", "pt"],
)
def test_names_that_tell_no_format(name: str) -> None:
    assert other_format("x", [name]) is None


def test_an_adapter_beside_a_config_is_one_too(tmp_path: Path) -> None:
    names = ["config.json", "adapter_config.json", "adapter_model.safetensors", "training_args.bin"]
    assert "a LoRA adapter" in str(other_format("x", names))


def test_a_whole_model_may_lie_beside_others(tmp_path: Path) -> None:
    for whole in ("model.safetensors", "model.safetensors.index.json"):
        assert other_format("x", [whole, *FILES]) is None
    assert other_format("x", ["config.json", "README.md"]) is None


def test_what_is_not_there_is_no_format(tmp_path: Path) -> None:
    refuse_other_format(tmp_path / "model.gguf")
    refuse_other_format(tmp_path / "a\0b.gguf")
    (tmp_path / "model.gguf").touch()
    with pytest.raises(CheckpointError):
        refuse_other_format(tmp_path / "model.gguf")
