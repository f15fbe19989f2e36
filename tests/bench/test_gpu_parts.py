"""The parts of `bench/gpu_check.sh` that ask for a device: on the simulated one, or this CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.gpu import load, parity, requests, rows, separate, speed, ways, weights
from bench.gpu.results import Report, read_report
from bench.gpu.setting import Setting
from ingot.artifact.golden_error import GoldenDifference
from ingot.artifact.reader import Artifact
from ingot.cli.main import main
from ingot.errors import IncompatibleHostError, VerificationError
from ingot.runtime.devices import EXECUTORS
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.llm import LLM
from ingot.targets.cuda.simulated import SimulatedDriver
from tests.support.tiny_models import save_random
from tests.targets.cuda import simulation
from tests.targets.cuda.simulation import FLAGS, compile_sketch

pytestmark = pytest.mark.thorough

TINY, BUNDLED = "tiny", "shakespeare"


class SimulatedSetting(Setting):
    """Artifacts of the simulated device, unless they are asked for on the CPU."""

    def artifact(self, name: str, device: str = "") -> Artifact:
        if (device or self.device) == "cpu":
            return Artifact.open(self.path(name), device="cpu")
        return Artifact.open(self.path(name), flags=FLAGS)

    def driver(self) -> Driver:
        return SimulatedDriver()


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory, shakespeare_artifact: Path) -> Path:
    """A tiny model for the simulated device, and the bundled one for this CPU."""
    folder = tmp_path_factory.mktemp("gpu")
    model_dir = save_random("qwen3", folder / "model", tokenizer=True)
    compile_sketch(
        model_dir, folder / f"{TINY}.ingot", dtype="bfloat16", max_model_len=64, max_num_seqs=8,
        max_num_batched_tokens=32,
    )  # fmt: skip
    (folder / f"{BUNDLED}.ingot").symlink_to(shakespeare_artifact)
    return folder


@pytest.fixture
def setting(artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setitem(EXECUTORS, "cuda", f"{simulation.__name__}:SimulatedExecutor")
    return SimulatedSetting(tmp_path, artifacts, Report(tmp_path / "report.json"))


@pytest.fixture
def on_cpu(setting: Setting) -> Setting:
    return replace(setting, device="cpu")


def figures(setting: Setting) -> dict[str, Any]:
    """What the part has left in its file."""
    return read_report(setting.report.file)["figures"]


def test_copies_go_there_and_back(setting, monkeypatch):
    load.copies(setting)
    assert 0 < figures(setting)["free_gigabytes"] < 2
    monkeypatch.setattr(SimulatedDriver, "replay", lambda self, graph: None)
    with pytest.raises(RuntimeError, match=r"^a graph of copies: other bytes came back$"):
        load.copies(setting)


def test_binaries_are_loaded(setting):
    load.load(setting, TINY)
    found = figures(setting)
    assert found["kernels"] > 5 and found["refused"] == 0


def test_a_binary_that_the_driver_refuses_is_named(setting, monkeypatch):
    def refuse(self, spec, binary, code):
        if spec.function.startswith("attention."):
            raise IncompatibleHostError("unsupported version")

    monkeypatch.setattr(SimulatedDriver, "load", refuse)
    with pytest.raises(RuntimeError, match=r"attention\.\w+ \(0 shared bytes\): unsupported"):
        load.load(setting, TINY)
    assert figures(setting)["refused"] > 0


def test_weights_stand_beside_reads_and_copies_alone(setting):
    weights.weights(setting, TINY)
    found = figures(setting)
    each = found["gigabytes_per_second"]
    assert set(each) == {"read", "copied", "both"} and min(each.values()) > 0
    assert found["share"] == each["both"] / min(each["read"], each["copied"])


def test_rows_are_compared_kernel_by_kernel(setting, monkeypatch):
    rows.rows(setting, TINY, longest=3, chunks=(2,))
    assert figures(setting)["chunks"] == {"3": "equal", "2": "equal"}
    step = rows._step

    def wrong(executor, plan, built, inputs):
        for number, result in enumerate(step(executor, plan, built, inputs)):
            if number == 3 and inputs.num_tokens == 1:
                result.data[0, 0] ^= 1
            yield result

    monkeypatch.setattr(rows, "_step", wrong)
    with pytest.raises(RuntimeError, match=r"^in chunks of 2: .*'first row': 2"):
        rows.rows(setting, TINY, longest=3, chunks=(2,))
    assert figures(setting)["chunks"]["3"] == "equal"


@pytest.mark.slow
def test_logits_are_compared_way_by_way(setting, monkeypatch):
    monkeypatch.setattr(ways, "BESIDE", 1)
    ways.ways(setting, TINY, tokens=3, chunks=(2,))
    assert set(figures(setting)["ways"].values()) == {"equal"}
    assert len(figures(setting)["ways"]) == 4
    monkeypatch.setattr(ways, "without_graphs", lambda llm, ids: llm.logits(ids) + 1)
    monkeypatch.setattr(ways, "beside", lambda llm, ids: 1 / 0)
    with pytest.raises(RuntimeError) as failed:
        ways.ways(setting, TINY, tokens=2, chunks=())
    assert "beside others: ZeroDivisionError" in str(failed.value)
    assert "without graphs: {'rows': 2, 'first row': 0, 'largest': 1.0" in str(failed.value)


def test_golden_prompts_are_replayed(on_cpu, monkeypatch):
    parity.verify(on_cpu, BUNDLED)
    found = figures(on_cpu)
    assert found["bitwise_equal"] and found["faults"] == []
    wrong = GoldenDifference(9.0, 9.0, 9.0)
    monkeypatch.setattr("ingot.runtime.verify.difference", lambda prompts, logits: wrong)
    with pytest.raises(VerificationError):
        parity.verify(on_cpu, BUNDLED)
    assert figures(on_cpu)["max_errors"]["tokens"] == 9.0


def test_logits_stand_beside_those_of_the_cpu(on_cpu, setting, monkeypatch):
    parity.beside_cpu(on_cpu, BUNDLED, tokens=8)
    assert figures(on_cpu)["error"] == 0.0 and figures(on_cpu)["same_tokens"] == 1.0
    with pytest.raises(RuntimeError, match="no CPU target: cuda:sm_90"):
        parity.beside_cpu(setting, TINY)
    monkeypatch.setattr(parity, "ALLOWED", {"none": -1.0})
    with pytest.raises(RuntimeError, match="is allowed"):
        parity.beside_cpu(on_cpu, BUNDLED, tokens=8)


SHORT = requests.Load(prompt=24, new=12)


def test_requests_draw_the_same_tokens_in_every_way(on_cpu):
    requests.requests(on_cpu, BUNDLED, load=SHORT)
    assert figures(on_cpu)["ways"] == dict.fromkeys(requests.WAYS, "equal")


def test_other_tokens_are_named_by_way_and_request(on_cpu, monkeypatch):
    original = requests._alone

    def wrong(setting, name, load):
        found = original(setting, name, load)
        found[3][0][-1] += 1
        return found

    def broken(setting, name, load):
        raise OSError("lost")

    monkeypatch.setitem(requests.WAYS, "alone", wrong)
    monkeypatch.setitem(requests.WAYS, "again", broken)
    with pytest.raises(RuntimeError) as failed:
        requests.requests(on_cpu, BUNDLED, load=SHORT, ways=("together", "again", "alone"))
    assert str(failed.value).splitlines() == [
        "again: OSError: lost", "alone: other tokens in requests 3",
    ]  # fmt: skip


def test_ways_that_did_not_happen_are_faults(on_cpu, monkeypatch):
    monkeypatch.setattr(requests, "cramped", lambda setting, name, load: {})
    with pytest.raises(RuntimeError, match=r"after preemptions: .*there were no preemptions"):
        requests.requests(on_cpu, BUNDLED, load=SHORT, ways=("together", "after preemptions"))


def test_the_host_draws_as_the_simulated_device_does(setting, monkeypatch):
    monkeypatch.setattr(requests, "KINDS", requests.KINDS[:3])
    load = requests.Load(prompt=2, new=2)
    requests.requests(setting, TINY, load=load, ways=("together", "drawn by the host"))
    assert set(figures(setting)["ways"].values()) == {"equal"}


@pytest.mark.slow
def test_decodes_and_a_prefill_are_timed(setting, monkeypatch):
    monkeypatch.setattr(speed, "REPLAYS", 1)
    speed.speed(setting, TINY, batches=(1, 16), context=2, prompt=5, steps=1)
    found = figures(setting)
    assert list(found["decode"]) == ["1"]  # the artifact is for 8 sequences
    assert found["decode"]["1"]["tokens_per_second"] > 0 and "share" not in found["decode"]["1"]
    assert found["parts"]["1"]["launches"] > 10 and found["parts"]["1"]["graph in ms"] > 0
    assert found["prefill"]["tokens"] == 5


def test_a_process_without_compilers_generates(on_cpu):
    separate.without_compilers(on_cpu, BUNDLED)
    found = figures(on_cpu)
    assert len(found["tokens"]) == 16 and found["compiled"] == 0 and found["forbidden"] == []
    with pytest.raises(RuntimeError, match="numpy was imported"):
        separate.generate(on_cpu, BUNDLED, 1, forbidden=("numpy",))


def test_a_driver_that_compiles_is_found_out(on_cpu, monkeypatch):
    def generate(setting, name, tokens, forbidden, environment):
        (Path(environment["CUDA_CACHE_PATH"]) / "index").write_text("a kernel")
        return {"tokens": [1], "forbidden": []}

    monkeypatch.setattr(separate, "generate", generate)
    with pytest.raises(RuntimeError, match="1 kernels were compiled"):
        separate.without_compilers(on_cpu, BUNDLED)


def test_the_first_token_is_timed_from_the_opening(on_cpu, monkeypatch):
    monkeypatch.setattr(separate, "ROUNDS", 1)
    separate.first_token(on_cpu, BUNDLED)
    found = figures(on_cpu)
    assert 0 < found["open in s"] < found["first token in s"]


def test_the_benchmark_of_cpus_points_to_this_one(artifacts, capsys):
    assert main(["bench", str(artifacts / f"{TINY}.ingot")]) == IncompatibleHostError.exit_code
    said = capsys.readouterr().err
    assert "has no CPU target, only cuda:sm_90" in said and "bench/gpu_check.sh" in said


def test_what_is_not_finite_is_told(setting, monkeypatch):
    monkeypatch.setattr(LLM, "logits", lambda self, ids: np.full((2, 3), np.nan, np.float32))
    with pytest.raises(RuntimeError, match="6 logits are not finite"):
        ways.ways(setting, TINY, tokens=2)
