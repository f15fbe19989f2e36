from __future__ import annotations

import json
import shlex

from ingot.cli.main import main
from tests.cli.sample_artifact import write_sample


def test_a_supported_model_shows_its_needs(shakespeare_dir, capsys):
    assert main(["explain", str(shakespeare_dir)]) == 0
    out = capsys.readouterr().out
    for part in ("supported", "Qwen3ForCausalLM", "5.25M", "bfloat16  10.5 MB", "KB a token"):
        assert part in out
    assert f"ingot compile {shakespeare_dir}" in out


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
    assert "nearest" in out
    assert "twist" in out
    assert "ingot compile" not in out


def test_json(shakespeare_dir, capsys):
    assert main(["explain", str(shakespeare_dir), "--json"]) == 0
    explanation = json.loads(capsys.readouterr().out)
    assert explanation["supported"] is True
    assert explanation["num_parameters"] == 5_246_976


def test_a_missing_directory_is_an_error(tmp_path, capsys):
    assert main(["explain", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_an_artifact_gets_the_command_that_shows_it(tmp_path, capsys):
    path = write_sample(tmp_path / "it's done.ingot")
    assert main(["explain", str(path)]) == 2
    hint = capsys.readouterr().err.splitlines()[-1]
    assert shlex.split(hint.partition(": ")[2])[-2:] == ["inspect", str(path)]
