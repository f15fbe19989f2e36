"""The shapes of the dense families that benchmarks measure, and the table of what was measured."""

from __future__ import annotations

import pytest

from bench import families
from bench.family_shapes import FAMILY_SHAPES, family_config
from ingot.models import registry


def architectures(name: str) -> list[str]:
    return [
        f"{FAMILY_SHAPES[name][0].removesuffix('Text')}{end}"
        for end in ("ForCausalLM", "LMHeadModel")
    ]


@pytest.mark.parametrize("name", FAMILY_SHAPES)
def test_a_family_of_ours_builds_each_shape(name: str) -> None:
    config = {**family_config(name).to_dict(), "dtype": "bfloat16"}
    known = registry.supported_architectures()
    (architecture,) = (each for each in architectures(name) if each in known)
    assert registry.parse_config({**config, "architectures": [architecture]}).num_layers > 0


def found(prefill: float, decode: float) -> dict[str, dict[str, float]]:
    return {
        "prefill": {"tokens_per_second": 1000.0, "share": prefill},
        "decode": {"tokens_per_second": 30.0, "share": decode},
    }


def test_what_is_below_its_limit_has_a_star() -> None:
    assert families.line("a", found(0.78, 0.87)).split() == [
        "a",
        "1000.0",
        "78",
        "%",
        "30.0",
        "87",
        "%*",
    ]


@pytest.mark.parametrize(("decode", "code"), [(0.88, 0), (0.87, 1)])
def test_a_missed_limit_is_the_exit_code(
    tmp_path, monkeypatch, capsys, decode: float, code: int
) -> None:
    monkeypatch.setattr(families, "measure", lambda *_: found(0.8, decode))
    out = tmp_path / "figures.json"
    assert families.main(["gpt2-large", "--work", str(tmp_path), "--json", str(out)]) == code
    assert "gpt2-large" in capsys.readouterr().out and "gpt2-large" in out.read_text()
