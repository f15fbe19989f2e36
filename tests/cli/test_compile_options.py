"""Each option of `ingot compile` changes what it names and nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

import ingot.compiling
from ingot.cli.main import main
from ingot.compiler.options import CompileOptions
from ingot.errors import VerificationError


class Stopped(VerificationError):
    """The compiler was reached."""


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Path, CompileOptions]]:
    """Where the compiler was to write, and with what options."""
    seen: list[tuple[Path, CompileOptions]] = []

    def compile_checked(
        model: Path, out: Path, options: CompileOptions, progress: object, **_: object
    ) -> None:
        seen.append((out, options))
        raise Stopped("stopped")

    monkeypatch.setattr(ingot.compiling, "compile_checked", compile_checked)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    return seen


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("--target cpu:portable", "targets", ("cpu:portable",)),
        ("--target cpu:portable,,cpu:native,", "targets", ("cpu:portable", "cpu:native")),
        ("--dtype bfloat16", "dtype", "bfloat16"),
        ("--dtype float16", "dtype", "float16"),
        ("--quantize int4", "quantize", "int4"),
        ("--group-size 64", "group_size", "64"),
        ("--group-size channel", "group_size", "channel"),
        ("--keep lm_head=bf16 --keep a=none", "keep", ("lm_head=bf16", "a=none")),
        ("--calibrate text", "calibrate", Path("text")),
        ("--quality-text text", "quality_text", Path("text")),
        ("--quality-positions 1k", "quality_positions", 1000),
        ("--max-kl 0.25", "max_kl", 0.25),
        ("--no-quality", "quality", False),
        ("--kv-dtype int8", "kv_dtype", "int8"),
        ("--cuda-reach new", "cuda_reach", "new"),
        ("--max-model-len 2K", "max_model_len", 2048),
        ("--max-num-seqs 1k", "max_num_seqs", 1000),
        ("--max-num-batched-tokens 7", "max_num_batched_tokens", 7),
        ("--page-size 32", "page_size", 32),
        ("--verify-passes", "verify_passes", True),
        ("--dump dir", "dump_dir", Path("dir")),
        ("--disable-pass x --disable-pass y", "disable_passes", ("x", "y")),
    ],
)
def test_an_option_is_one_field(given, words: str, field: str, value: object) -> None:
    assert main(["compile", *words.split(), "model"]) == 4
    ((out, options),) = given
    found, default = asdict(options), asdict(CompileOptions())
    assert {name for name in found if found[name] != default[name]} == {field}
    assert (found[field], out) == (value, Path("model.ingot"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--target ,", "at least one target"),
        ("--max-kl much", "--max-kl: invalid float value: 'much'"),
        ("--max-kl -1", "max_kl is -1.0"),
        ("--max-kl nan", "max_kl is nan"),
        ("--quality-positions 0", "'0' is not a positive number"),
        ("--quality-positions 1M", "quality_positions is 1048576"),
        ("--dtype float8", "--dtype is 'float8'"),
        ("--quantize int2", "--quantize is 'int2'"),
        ("--kv-dtype int4", "--kv-dtype is 'int4'"),
        ("--cuda-reach far", "--cuda-reach is 'far'"),
        ("--page-size 0", "positive number"),
        ("--max-num-seqs 1.5", "positive number"),
    ],
)
def test_a_wrong_value_is_told_with_its_option(given, words: str, said: str, capsys) -> None:
    assert main(["compile", "model", *words.split()]) == 2
    assert said in capsys.readouterr().err and given == []


@pytest.mark.parametrize("model", ["model", "model/", "./model", "../{here}/model"])
def test_the_output_is_called_like_the_model_and_lies_here(given, tmp_path, model: str) -> None:
    assert main(["compile", model.format(here=tmp_path.name)]) == 4
    assert given[0][0] == Path("model.ingot")
    assert main(["compile", model.format(here=tmp_path.name), "-o", "sub/x"]) == 4
    assert given[1][0] == Path("sub/x")


def test_an_error_is_told_on_both_channels(given, capsys) -> None:
    assert main(["compile", "model", "--json"]) == 4
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "error": {"type": "Stopped", "found": "stopped", "hint": "", "exit_code": 4}
    }
    assert captured.err == "error: stopped\n"
