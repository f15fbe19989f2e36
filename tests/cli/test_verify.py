"""`ingot verify` around a model and a replay that are made up."""

from __future__ import annotations

import json

import pytest

import ingot.runtime.verify
from ingot.artifact.golden import Tolerance
from ingot.artifact.golden_error import GoldenDifference
from ingot.cli.main import main
from ingot.runtime.verify import Mismatch, Verification
from tests.cli.sample_artifact import write_sample

ALLOWED = Tolerance(1e-3, 1.5e-3, 2e-3, 1e-6)
SMALL, SMALLER = GoldenDifference(1e-7, 2e-6, 1e-9), GoldenDifference(1e-7, 1e-6, 1e-9)
GOOD = Verification(
    num_prompts=2,
    num_positions=9,
    number_format="float32",
    allowed=ALLOWED,
    differences={"prefill": SMALLER, "tokens": SMALL},
    mismatches=(),
    bitwise_equal=True,
)
WRONG = Verification(
    num_prompts=2,
    num_positions=9,
    number_format="float32",
    allowed=ALLOWED,
    differences={"prefill": GoldenDifference(0.1, 0.5, 0.1)},
    mismatches=(Mismatch("prefill", 0, 3, 7, 8, 1.25, False),),
    bitwise_equal=True,
)


@pytest.fixture
def replay(monkeypatch, tmp_path):
    """Runs the verb on the sample artifact with a replay that finds the given result."""
    path = write_sample(tmp_path / "sample.ingot")

    def run(result, *options, path=path):
        monkeypatch.setattr(ingot.runtime.verify, "replay", lambda artifact, golden: result)
        return main(["verify", str(path), *options])

    run.path = path
    return run


def test_a_good_artifact(replay, capsys):
    assert replay(GOOD) == 0
    captured = capsys.readouterr()
    for part in (
        "3 hashes match",
        "2 prompts, 9 positions",
        "2.0e-06, 2.0e-03 allowed",
        "cpu:portable",
    ):
        assert part in captured.out
    assert captured.err.startswith("hashes ")


def test_wrong_outputs_fail_and_show_the_margin(replay, capsys):
    assert replay(WRONG) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "expected 7 by a margin of 1.25" in captured.err


def test_json_of_both(replay, capsys):
    assert replay(GOOD, "--json") == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
    assert replay(WRONG, "--json") == 4
    value = json.loads(capsys.readouterr().out)
    assert value["passed"] is False
    assert value["mismatches"][0]["margin"] == 1.25


def test_a_flipped_bit_is_found(replay, capsys):
    weights = replay.path / "weights" / "cpu-float32.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert replay(GOOD) == 3
    assert "cpu-float32.safetensors" in capsys.readouterr().err


def test_a_model_directory_is_compiled_into_the_cache(replay, model_dir, capsys):
    assert replay(GOOD, path=model_dir) == 0
    captured = capsys.readouterr()
    assert "3 hashes match" in captured.out
    assert f"compiling {model_dir}" in captured.err
