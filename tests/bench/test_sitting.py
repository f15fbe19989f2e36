"""`bench/sitting.py` with measurements that are made up."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from bench import sitting
from bench.sitting import PARTS, Sitting, main, merged, number, times

PHASE = {
    "tokens_per_second": 41.23456, "share": 0.5, "limits": {"read_bytes_per_second": 3e10},
}  # fmt: skip
KERNELS = [
    {"kernel": "linear", "seconds": 2.0},
    {"kernel": "paged_attention", "seconds": 1.0},
    {"kernel": "paged_attention_quantize", "seconds": 3.0},
    {"kernel": "rms_norm", "seconds": 0.0},
]
SCRIPTS = {
    "compile_figures": {"seconds": 24.0, "peak_gb": 2.0},
    "start_figures": {"import_seconds": 0.1, "first_token_seconds": 0.25},
    "memory_figures": {"extra_mb": 60.0, "peak_mb": 900.0},
}


@pytest.fixture
def scripts(monkeypatch):
    """What would be run, as a list that grows; every script has its made-up figures."""
    ran: list[tuple[str, ...]] = []

    def run_script(name, *args):
        ran.append((name, *args))
        return SCRIPTS[name]

    def ingot_bench(artifact, *options):
        ran.append(("ingot bench", str(artifact), *options))
        kernels = {"kernels": KERNELS} if "--ops" in options else {}
        return {"phases": [{**PHASE, **kernels}] * 3}

    monkeypatch.setattr(sitting, "run_script", run_script)
    monkeypatch.setattr(sitting, "ingot_bench", ingot_bench)
    monkeypatch.setattr(sitting, "made_model", lambda shape, work: work / shape)
    return ran


def test_a_model_is_compiled_in_its_format_and_measured(tmp_path, scripts):
    found = Sitting(tmp_path, rounds=3).measure("qwen3-0.6b/int8")
    artifact = str(tmp_path / "qwen3-0.6b-int8.ingot")
    model = str(tmp_path / "qwen3-0.6b")
    assert scripts[0] == ("compile_figures", model, artifact, *sitting.OPTIONS["int8"])
    assert ("ingot bench", artifact, "--batch", "16", "--rounds", "3") in scripts
    assert found["prefill"] == found["streams"] == {"tokens_per_second": 41.23, "share": 0.5}
    assert (found["first_token_seconds"], found["memory_mb"]) == (0.25, 60.0)
    assert found["read_gb_per_second"] == 30.0
    assert {"date", "ingot", "python"} <= set(found)


def test_peers_are_ratios_with_their_versions(tmp_path, scripts, monkeypatch):
    def run(command, **options):
        results = [
            {"name": "ingot", "prefill_ratio": None, "decode_ratio": None},
            {"name": "openvino", "prefill_ratio": 1.23456, "decode_ratio": 2.0},
        ]
        Path(command[command.index("--json") + 1]).write_text(json.dumps({"results": results}))

    monkeypatch.setattr(sitting.subprocess, "run", run)
    monkeypatch.setattr(sitting, "peer_version", lambda name, binary: f"{name} 1.2")
    found = Sitting(tmp_path, rounds=3).measure("peers/int4")
    assert found["times"] == {
        "openvino": {"version": "openvino 1.2", "prefill": 1.235, "decode": 2.0}
    }
    assert [name for name, *_ in scripts] == ["compile_figures"]


def test_a_binary_is_raced_and_has_its_own_version(tmp_path, scripts, monkeypatch):
    binary = tmp_path / "server"
    binary.write_text("#!/bin/sh\necho 'version: 48 (ab)' >&2\n")
    binary.chmod(0o755)
    ran, run = [], sitting.subprocess.run

    def run_all_but_peers(command, **options):
        if command[0] == str(binary):
            return run(command, **options)
        ran.append(command)
        results = [
            {"name": "ingot"}, {"name": "ik_llama.cpp", "prefill_ratio": 2.0, "decode_ratio": 1.5},
        ]  # fmt: skip
        Path(command[command.index("--json") + 1]).write_text(json.dumps({"results": results}))

    monkeypatch.setattr(sitting.subprocess, "run", run_all_but_peers)
    raced = Sitting(tmp_path, rounds=3, binaries=(("ik_llama.cpp", binary),))
    found = raced.measure("peers/int8")
    assert f"--binary=ik_llama.cpp={binary}" in ran[0]
    assert found["times"]["ik_llama.cpp"]["version"] == "ik_llama.cpp 48"


def test_streams_are_raced_with_short_prompts(tmp_path, scripts, monkeypatch):
    ran = []

    def run(command, **options):
        ran.append(command)
        results = [{"name": "ingot"}, {"name": "vllm", "prefill_ratio": 2.0, "decode_ratio": 1.5}]
        Path(command[command.index("--json") + 1]).write_text(json.dumps({"results": results}))

    monkeypatch.setattr(sitting.subprocess, "run", run)
    monkeypatch.setattr(sitting, "peer_version", lambda name, binary: f"{name} 1.2")
    found = Sitting(tmp_path, rounds=3).measure("streams/bf16")
    assert found["times"] == {"vllm": {"version": "vllm 1.2", "prefill": 2.0, "decode": 1.5}}
    (command,) = ran
    options = dict(pairwise(command))
    assert (options["--prompt"], options["--streams"], options["--rounds"]) == ("32", "16", "3")


def test_long_prompts_have_the_share_of_attention_and_others_beside_the_first(
    tmp_path, scripts, monkeypatch
):
    monkeypatch.setattr(Sitting, "peers", lambda self, kind, prompt: {"times": {kind: prompt}})
    found = Sitting(tmp_path, rounds=3).measure("long/int8")
    assert found["times"] == {"int8": 4096}
    for tokens in (4096, 16384):
        artifact, size = str(tmp_path / "qwen3-0.6b-int8.ingot"), str(tokens)
        command = ("ingot bench", artifact, "--prompt", size, "--context", size, "--batch", "1")
        assert (*command, "--ops", "--rounds", "3") in scripts
        for phase in ("prefill", "decode"):
            expected = {"tokens_per_second": 41.23, "share": 0.5, "attention": 4 / 6}
            assert found[f"{phase}_{tokens}"] == pytest.approx(expected, rel=1e-3)


def test_without_ingot_there_are_no_ratios():
    found = {
        "results": [{"name": "openvino", "prefill_ratio": None, "decode_ratio": None}],
        "not_measured": {"ingot int4": "out of luck"},
    }
    with pytest.raises(ValueError, match="out of luck"):
        times(found)


def test_a_part_replaces_itself_and_no_other():
    machine = {"name": "m"}
    figures = {"machine": machine, "parts": {PARTS[0]: {"a": 1}, PARTS[2]: {"a": 2}}}
    assert merged(figures, PARTS[2], {"a": 3})["parts"] == {PARTS[0]: {"a": 1}, PARTS[2]: {"a": 3}}
    found = merged(figures, PARTS[1], {"a": 4})
    assert list(found["parts"]) == list(PARTS[:3])
    assert found["machine"] == machine


def test_what_is_measured_before_a_failure_is_kept(tmp_path, monkeypatch):
    def measure(self, part):
        if part == PARTS[1]:
            raise RuntimeError("out of luck")
        return {"part": part}

    monkeypatch.setattr(Sitting, "measure", measure)
    out = tmp_path / "figures.json"
    with pytest.raises(RuntimeError):
        main([str(out), "--work", str(tmp_path / "work")])
    assert json.loads(out.read_text())["parts"] == {PARTS[0]: {"part": PARTS[0]}}
    assert main([str(out), "--parts", PARTS[3], "--machine", "a box", "--work", str(tmp_path)]) == 0
    figures = json.loads(out.read_text())
    assert set(figures["parts"]) == {PARTS[0], PARTS[3]}
    assert figures["machine"]["name"] == "a box"


def test_a_part_that_fails_is_named(tmp_path, monkeypatch, capsys):
    def measure(self, part):
        raise ValueError("ingot itself was not measured: {}")

    monkeypatch.setattr(Sitting, "measure", measure)
    out = tmp_path / "figures.json"
    assert main([str(out), "--parts", PARTS[0], "--work", str(tmp_path)]) == 1
    assert f"{PARTS[0]} was not measured: ingot itself" in capsys.readouterr().err


def test_figures_of_another_machine_are_left_alone(tmp_path, capsys):
    out = tmp_path / "figures.json"
    text = json.dumps({"machine": {"name": "m", "processor": "abacus", "cores": 1}, "parts": {}})
    out.write_text(text)
    assert main([str(out), "--work", str(tmp_path)]) == 2
    assert "abacus" in capsys.readouterr().err
    assert out.read_text() == text


@pytest.mark.parametrize(("value", "kept"), [(434.7649, 434.8), (0.0123456, 0.01235), (7, 7.0)])
def test_a_number_has_four_digits(value, kept):
    assert number(value) == kept
