"""What `bench/gpu_check.sh` makes of what it measures: figures to check by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bench.gpu import artifacts, environment, limits, peer, separate, speed
from bench.gpu.parity import relative_error, same_tokens
from bench.gpu.places import LIMITS, report_file
from bench.gpu.requests import other_tokens
from bench.gpu.results import Faults, Report, read_report
from bench.gpu.rows import Result, first_difference, numbers
from bench.gpu.setting import Setting
from bench.gpu.summary import shown
from bench.gpu.ways import difference
from ingot.artifact.cost import StepShape
from ingot.artifact.reader import Artifact
from ingot.artifact.step_cost import step_cost
from tests.support.tiny_models import save_random

pytestmark = pytest.mark.thorough


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path, tmp_path, Report(tmp_path / "a.json"), device="cpu")


def test_a_copy_reads_and_writes():
    assert limits.bandwidth(3 << 30, 2.0) == 3 << 30


def test_a_decode_stands_beside_the_time_that_its_bytes_take(shakespeare_artifact):
    plan = Artifact.open(shakespeare_artifact, device="cpu").plan
    shape = StepShape(sequences=4, context=10)
    cost = step_cost(plan, shape)
    found = speed.decode_figures(plan, shape, 0.5, {"bytes_per_second": 4.0 * cost.weight_bytes})
    assert (found["tokens_per_second"], found["milliseconds"]) == (8.0, 500.0)
    assert found["share"] == pytest.approx(0.5)
    assert found["share_with_cache"] == pytest.approx(0.5 * cost.num_bytes / cost.weight_bytes)
    assert "share" not in speed.decode_figures(plan, shape, 0.5, {})


def test_a_prefill_stands_beside_the_time_that_its_operations_take(shakespeare_artifact):
    plan = Artifact.open(shakespeare_artifact, device="cpu").plan
    whole = step_cost(plan, StepShape(new_tokens=12, context=12)).num_operations
    found = speed.prefill_figures(plan, 12, 2.0, {"operations_per_second": float(whole)})
    assert (found["tokens"], found["tokens_per_second"]) == (12, 6.0)
    assert found["share"] == pytest.approx(0.5)
    # In steps of 5 tokens, every one of which computes the logits of its last token.
    small = replace(plan, limits=replace(plan.limits, max_num_batched_tokens=5))
    steps = [StepShape(new_tokens=new, context=end) for new, end in ((5, 5), (5, 10), (2, 12))]
    operations = sum(step_cost(small, step).num_operations for step in steps)
    found = speed.prefill_figures(small, 12, 2.0, {"operations_per_second": float(operations)})
    assert found["share"] == pytest.approx(0.5)


def test_the_limits_are_those_of_this_run(setting):
    assert setting.card() == {}
    file = report_file(setting.work, LIMITS)
    file.parent.mkdir()
    Report(file).note(bytes_per_second=1e12)
    assert setting.card() == {"bytes_per_second": 1e12}


def test_ratios_are_those_of_each_round():
    found = peer.compared(8, [(1.0, 3.0), (2.0, 4.0), (4.0, 20.0)])
    assert found == {"ratio": 3.0, "tokens_per_second": 4.0, "transformers": 2.0}


def test_transformers_decodes_with_a_static_cache_as_without(tmp_path):
    model = peer.load_model(save_random("qwen3", tmp_path / "model", tokenizer=True), "cpu")
    theirs = peer.Theirs(model, peer.decode_step(model), batch=2, context=5, room=4)
    rng = torch.Generator().manual_seed(2)
    prompt = torch.randint(model.config.vocab_size, (2, 5), generator=rng)
    expected = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, min_new_tokens=4,
        do_sample=False, eos_token_id=None,
    )[:, 5:]  # fmt: skip
    found = [theirs.tokens]
    for _ in range(3):
        assert theirs.run(1) > 0
        found.append(theirs.tokens)
    assert torch.equal(torch.cat(found, dim=1), expected)


def test_both_decode_in_turn_and_a_batch_that_fails_costs_no_other(
    setting, shakespeare_artifact, monkeypatch
):
    (setting.work / "shakespeare-bf16.ingot").symlink_to(shakespeare_artifact)
    load_model = peer.load_model
    monkeypatch.setattr(peer, "load_model", lambda folder: load_model(folder, "cpu"))
    monkeypatch.setattr(peer, "compiled", peer.decode_step)
    monkeypatch.setattr(peer, "ROUNDS", 1)
    with pytest.raises(RuntimeError, match="decode of 0"):
        peer.beside_transformers(setting, "shakespeare-bf16", batches=(0, 2), context=3, steps=2)
    found = read_report(setting.report.file)["figures"]["decode"]
    assert list(found) == ["2"]
    assert {"ratio", "tokens_per_second", "transformers", "compile in s"} == set(found["2"])


def test_what_nvidia_smi_says():
    text = "580.159.04, 345 MHz, 3201 MHz, 1980 MHz, 700.00 W, 31, 0 %, 4 MiB\nanother\n"
    found = environment.parsed(text)
    assert found["driver_version"] == "580.159.04" and found["clocks.max.sm"] == "1980 MHz"
    assert environment.parsed("") == {}


def test_the_environment_names_card_and_versions(setting, monkeypatch):
    properties = SimpleNamespace(
        name="H", major=9, minor=0, total_memory=150 * 10**9, multi_processor_count=132
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties)
    monkeypatch.setattr(environment, "find_gpus", lambda: ())
    monkeypatch.setattr(environment, "smi", dict)
    with pytest.raises(RuntimeError, match="shows no GPU"):
        environment.environment(setting)
    found = read_report(setting.report.file)["figures"]
    assert found["card"] == {
        "name": "H", "capability": "9.0", "gigabytes": 150.0, "multiprocessors": 132,
    }  # fmt: skip
    assert found["versions"]["torch"] == torch.__version__


def test_the_errors_of_the_sanitizer_are_counted(setting, monkeypatch):
    assert separate.errors_of("x\n========= ERROR SUMMARY: 12 errors\n") == 12
    assert separate.errors_of("Device not supported") is None
    monkeypatch.setattr(separate.shutil, "which", lambda name: None)
    separate.sanitizer(setting, "a")
    assert "no compute-sanitizer" in read_report(setting.report.file)["figures"]["sanitizer"]
    monkeypatch.setattr(separate.shutil, "which", lambda name: "/bin/sanitizer")
    for said, count in (("ERROR SUMMARY: 0 errors", 0), ("ERROR SUMMARY: 1 error", 1), ("", None)):
        monkeypatch.setattr(separate, "generate", lambda *_, said=said, **__: {"output": said})
        if count == 0:
            separate.sanitizer(setting, "a")
        else:
            with pytest.raises(RuntimeError):
                separate.sanitizer(setting, "a")
        assert read_report(setting.report.file)["figures"]["errors"] == count


def test_artifacts_that_are_given_are_not_compiled(setting, shakespeare_artifact, monkeypatch):
    given = setting.work / "given"
    given.mkdir()
    (given / "shakespeare-bf16.ingot").symlink_to(shakespeare_artifact)
    setting = replace(setting, given=given)
    started = []

    def start(work, name):
        started.append(name)
        return SimpleNamespace(
            returncode=int(name.endswith("int4")),
            communicate=lambda: ('warning\n{"seconds": 1}\n', ""),
        )

    monkeypatch.setattr(artifacts, "start", start)
    with pytest.raises(RuntimeError, match="shakespeare-int4: warning"):
        artifacts.build(setting, "shakespeare-bf16", "shakespeare-int8", "shakespeare-int4")
    assert started == ["shakespeare-int8", "shakespeare-int4"]
    found = read_report(setting.report.file)["figures"]
    assert found["shakespeare-int8"] == {"seconds": 1}
    assert found["shakespeare-bf16"]["taken from"].startswith(str(given))


def test_differences_of_rows_have_the_name_of_a_kernel(shakespeare_artifact):
    plan = Artifact.open(shakespeare_artifact, device="cpu").plan
    arena = next(b for b in plan.by_name.values() if b.kind == "arena")
    buffer = replace(arena, format=replace(arena.format, dtype="bfloat16"))
    ones = np.array([[0x80, 0x3F]] * 4, np.uint8)  # 1.0
    other = ones.copy()
    other[2, 0] = 0x81
    expected = [Result("first", buffer, ones), Result("second", buffer, ones)]
    assert first_difference(expected, expected) == {}
    found = first_difference(expected, [expected[0], Result("second", buffer, other)])
    assert (found["kernel"], found["number"], found["first row"]) == ("second", 1, 2)
    assert found["largest"] == 2**-7 and found["share of values"] == 0.25
    assert numbers(np.array([1.5], np.float16).view(np.uint8), "float16").tolist() == [1.5]


def test_differences_of_logits_and_tokens():
    a = np.array([[1, 2], [3, 4]], np.float32)
    b = np.array([[1, 2], [3, 1]], np.float32)
    assert difference(a, a) == {}
    assert difference(a, b) == {"rows": 1, "first row": 1, "largest": 3.0, "other tokens": 1}
    assert relative_error(b, a) == pytest.approx(3 / np.sqrt(30))
    assert same_tokens(a, b) == 0.5
    assert other_tokens([[[1]], [[2]]], [[[1]], [[3]]]) == "other tokens in requests 1"
    assert other_tokens([[[1]]], [[[1]]]) == ""


def test_a_report_keeps_figures_as_they_come(tmp_path):
    report = Report(tmp_path / "a.json")
    report.note(decode={"1": 2.0})
    report.note(decode={"2": 3.0}, name="x")
    assert json.loads((tmp_path / "a.json").read_text())["figures"] == {
        "decode": {"1": 2.0, "2": 3.0}, "name": "x",
    }  # fmt: skip
    assert shown({"a": 1.23456, "b": [1, "x"]}) == "a: 1.235, b: 1, x"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_faults_are_collected():
    faults = Faults()
    with faults.of("first"):
        raise ValueError("out of luck")
    faults.add("second", "")
    faults.add("third", {"rows": 1})
    with pytest.raises(RuntimeError, match=r"first: ValueError: out of luck\nthird: {'rows': 1}"):
        faults.raise_found()
    Faults().raise_found()
