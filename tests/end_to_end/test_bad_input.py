"""Bad model directories through the command: a typed error with the fix, and nothing left."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ingot.cli.main import main
from tests.support.checkpoints import HEAD, NORM, Q, edit
from tests.support.tiny_models import save_random

Damage = Callable[[Path], object]


def config(**values: object) -> Damage:
    def change(model: Path) -> None:
        path = model / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def write(name: str, text: str) -> Damage:
    return lambda model: (model / name).write_text(text)


def truncate(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def pickled(model: Path) -> None:
    (model / "model.safetensors").unlink()
    torch.save({}, model / "pytorch_model.bin")


def shard_listed_but_absent(model: Path) -> None:
    (model / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {Q: "model-00001-of-00002.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def oversized_tokenizer(model: Path) -> None:
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"]["字"] = 100_000
    path.write_text(json.dumps(tokenizer))


def not_finite(tensors: dict[str, torch.Tensor]) -> None:
    tensors[Q][3, 5] = float("nan")


def tokenizer(**values: object) -> Damage:
    def change(model: Path) -> None:
        path = model / "tokenizer.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def instead_of(name: str, make: Callable[[Path], object]) -> Damage:
    def change(model: Path) -> None:
        (model / name).unlink()
        make(model / name)

    return change


def zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def larger_heads(model: Path) -> None:
    """A whole model, but of heads that no kernel has room for."""

    def grown(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            rows = {"q_proj": 4, "k_proj": 2, "v_proj": 2}.get(name.split(".")[-2], 0)
            if rows:
                tensors[name] = torch.zeros(rows * 516, tensor.shape[1])
            elif ".o_proj." in name:
                tensors[name] = torch.zeros(tensor.shape[0], 4 * 516)

    edit(model, grown)
    config(head_dim=516)(model)


WORDS = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "<unk>"}
# What is done to the model, and what the error must name.
CASES: dict[str, tuple[Damage, str]] = {
    "no directory": (shutil.rmtree, "does not exist"),
    "no config": (lambda model: (model / "config.json").unlink(), "config.json"),
    "config is not JSON": (write("config.json", "{"), "config.json"),
    "unknown architecture": (config(architectures=["GrokForCausalLM"]), "nearest"),
    "unknown key": (config(num_hiden_layers=3), "num_hidden_layers"),
    "wrong type": (config(hidden_size="large"), "hidden_size"),
    "heads do not divide": (config(num_key_value_heads=3), "num_key_value_heads"),
    "missing tensor": (lambda model: edit(model, lambda t: t.pop(NORM)), NORM),
    "extra tensor": (
        lambda model: edit(model, lambda t: t.update({"adapter.weight": torch.ones(2)})),
        "adapter.weight",
    ),
    "misshapen tensor": (
        lambda model: edit(model, lambda t: t.update({HEAD: t[HEAD][1:].clone()})),
        HEAD,
    ),
    "not finite": (lambda model: edit(model, not_finite), Q),
    "truncated": (truncate, "model.safetensors"),
    "pickle": (pickled, "safe_serialization=True"),
    "shard absent": (shard_listed_but_absent, "model-00001-of-00002.safetensors"),
    "no tokenizer": (lambda model: (model / "tokenizer.json").unlink(), "tokenizer.json"),
    "tokenizer is damaged": (write("tokenizer.json", "[]"), "tokenizer.json"),
    "tokenizer has more ids": (oversized_tokenizer, "100000"),
    "tokenizer panics": (
        tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": ""}),
        "tokenizer.json",
    ),
    "tokenizer knows no English": (tokenizer(model=WORDS), "cannot encode"),
    "rows are too wide": (config(hidden_size=2**31 - 1), "hidden_size"),
    "the vocabulary is too large": (config(vocab_size=2**31 - 1), "vocab_size"),
    "config is a pipe": (instead_of("config.json", os.mkfifo), "not a regular file"),
    "weights are a device": (instead_of("model.safetensors", zero), "not a regular file"),
    "heads are too large": (larger_heads, "heads of size 516"),
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random("llama", tmp_path_factory.mktemp("model") / "model", tokenizer=True)


def check_refused(
    model: Path, named: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A compile into an empty folder names the fault and a fix, and leaves nothing there."""
    assert main(["compile", str(model), "-o", str(folder / "model.ingot")]) == 2
    error = capsys.readouterr().err
    message = error[error.index("error: ") :]
    assert named in message
    assert len(message.splitlines()) >= 2, "an error says what to do"
    assert "Traceback" not in error
    assert [path for path in folder.rglob("*") if path.suffix != ".lock"] == []


@pytest.mark.cases(core=10)
@pytest.mark.parametrize("name", CASES)
def test_a_bad_model_directory_is_refused(
    name: str, pristine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, named = CASES[name]
    model = tmp_path / "model"
    shutil.copytree(pristine, model)
    damage(model)
    check_refused(model, named, tmp_path / "out", capsys)


def test_the_undamaged_directory_compiles(pristine: Path, tmp_path: Path) -> None:
    """The control: what is refused above is the damage."""
    out = tmp_path / "model.ingot"
    assert main(["compile", str(pristine), "-o", str(out), "--target", "cpu:portable"]) == 0
    assert (out / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--target", "cpu:itanium"], "cpu:itanium"),
        (["--target", "cuda:sm_70"], "cuda:sm_70"),
        (["--dtype", "float8"], "float8"),
        (["--max-model-len", "10M"], "--max-model-len"),
        (["--max-num-seqs", "0"], "--max-num-seqs"),
        (["--page-size", "24"], "--page-size"),
        (["--disable-pass", "fuse_rope"], "fuse_rope"),
        (["--disable-pass", "fuse_everything"], "fuse_everything"),
    ],
)
def test_a_bad_option_is_refused(
    options: list[str],
    named: str,
    pristine: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "model.ingot"
    try:
        code = main(["compile", str(pristine), "-o", str(out), *options])
    except SystemExit as stop:  # argparse's own way out
        code = int(stop.code or 0)
    assert code == 2
    assert named in capsys.readouterr().err
    assert not out.exists()
