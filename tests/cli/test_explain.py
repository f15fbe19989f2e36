from __future__ import annotations

import json
import shlex

import pytest

from ingot.cli.explain import summary
from ingot.cli.main import main
from ingot.compiler.explain import Explanation
from ingot.models import registry
from tests.cli.sample_artifact import write_sample


def test_a_supported_model_shows_its_needs(shakespeare_dir, capsys):
    assert main(["explain", str(shakespeare_dir)]) == 0
    out = capsys.readouterr().out
    row = "bfloat16 (default)  10.5 MB"
    for part in ("supported", "Qwen3ForCausalLM", "5.25M", row, "KB a token"):
        assert part in out
    assert f"ingot compile {shakespeare_dir}" in out


def test_it_says_how_each_matrix_is_stored(shakespeare_dir, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["explain", str(shakespeare_dir)]) == 0
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    rows = {cells[1]: [cell.strip() for cell in cells if cell] for cells in lines if len(cells) > 1}
    down = rows["model.layers.*.mlp.down_proj (6)"]
    assert down[1:] == ["256x768", "int8, 6 groups of 128", "int4, 24 groups of 32, with zeros"]
    table = rows["model.embed_tokens"]
    assert table[1:] == ["2048x256", "int8, 2 groups of 128", "int8, 2 groups of 128"]


def test_the_next_command_is_one_for_a_shell(shakespeare_dir, tmp_path, capsys):
    model_dir = tmp_path / "it's a model"
    model_dir.symlink_to(shakespeare_dir)
    assert main(["explain", str(model_dir)]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert shlex.split(line)[-2:] == ["compile", str(model_dir)]


def test_an_unknown_architecture_names_the_nearest(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM2"], "twist": 1}')
    assert main(["explain", str(tmp_path)]) == 2
    out = capsys.readouterr().out
    assert "not supported" in out
    assert out.count("nearest") == out.count("twist") == 1
    assert "has no tokenizer.json" in out and "model.safetensors" in out
    assert out.count("ingot compile") == out.count("--from transformers") == 1


def test_every_supported_architecture_is_listed_without_a_model(capsys):
    known = sorted(registry.supported_architectures())
    assert main(["explain", "--supported"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == known
    assert main(["explain", "--supported", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == known


def test_no_model_is_an_error(capsys):
    assert main(["explain"]) == 2
    assert capsys.readouterr().err.startswith("error: no model\n")


def test_json(shakespeare_dir, capsys):
    assert main(["explain", str(shakespeare_dir), "--json"]) == 0
    explanation = json.loads(capsys.readouterr().out)
    assert explanation["supported"] is True
    assert explanation["num_parameters"] == 5_246_976


def test_what_does_not_fit_is_said(shakespeare_dir, capsys):
    argv = ["explain", str(shakespeare_dir), "--memory", "18MB", "--context", "512", "--seats", "2"]
    assert main([*argv, "--json"]) == 0  # it is supported, whatever fits
    told = json.loads(capsys.readouterr().out)
    assert (told["context"], told["seats"], told["memory_bytes"]) == (512, 2, 18_000_000)
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert "2 sequences of 512 tokens" in out and "18.0 MB are given" in out
    assert "What fits: the longest context of 2 sequences" in out


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--context", "2000", "Supported: 1 to 1024"),
        ("--seats", "5000", "Supported: 1 to 4096"),
        ("--target", "cpu:odd", "cpu:odd"),
    ],
)
def test_what_no_compile_gives_is_an_error(option, value, named, shakespeare_dir, capsys):
    assert main(["explain", str(shakespeare_dir), option, value]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and named in captured.err


def test_a_memory_that_is_no_size_is_an_error(shakespeare_dir, capsys):
    assert main(["explain", str(shakespeare_dir), "--memory", "much"]) == 2
    assert "24GiB" in capsys.readouterr().err


def test_a_missing_directory_is_an_error(tmp_path, capsys):
    assert main(["explain", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_an_artifact_gets_the_command_that_shows_it(tmp_path, capsys):
    path = write_sample(tmp_path / "it's done.ingot")
    assert main(["explain", str(path)]) == 2
    hint = capsys.readouterr().err.splitlines()[-1]
    assert shlex.split(hint.partition(": ")[2])[-2:] == ["inspect", str(path)]


def test_what_changes_nothing_is_shown():
    told = Explanation(supported=True, architecture="Any", ignored=("config.json: a = 1",))
    assert "ignored       config.json: a = 1" in summary("model", told)
