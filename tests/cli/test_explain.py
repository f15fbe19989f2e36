from __future__ import annotations

import json

from ingot.cli.main import main


def test_a_supported_model_shows_its_needs(shakespeare_dir, capsys):
    assert main(["explain", str(shakespeare_dir)]) == 0
    out = capsys.readouterr().out
    for part in ("supported", "Qwen3ForCausalLM", "5.25M", "bfloat16  10.5 MB", "KB a token"):
        assert part in out
    assert f"ingot compile {shakespeare_dir}" in out


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
