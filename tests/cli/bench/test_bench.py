"""`ingot bench`: what it measures and how it adds up, never how fast anything is."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace

import numpy as np
import pytest

from ingot.artifact.cost import StepShape
from ingot.artifact.reader import Artifact
from ingot.artifact.step_cost import step_cost
from ingot.cli.bench.bench import phases
from ingot.cli.bench.phases import STEPS
from ingot.cli.main import main
from ingot.errors import UsageError
from ingot.runtime.devices.cpu import CpuExecutor
from ingot.runtime.engine import Engine
from ingot.runtime.params import SamplingParams
from tests.cli.sample_artifact import LIMITS

SMALL = ("--prompt", "20", "--context", "8", "--batch", "3", "--rounds", "2")


def asked(**values):
    given = {"prompt": None, "context": None, "batch": None, "rounds": 1}
    return argparse.Namespace(**given | values)


@pytest.fixture(scope="module")
def measured(shakespeare_artifact):
    """One run's JSON, with the instructions."""
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["bench", str(shakespeare_artifact), *SMALL, "--ops", "--json"]) == 0
    return json.loads(out.getvalue())


@pytest.mark.thorough
def test_json_has_every_phase_beside_its_limit(measured, shakespeare_artifact):
    names = [phase["name"] for phase in measured["phases"]]
    assert names == ["prefill 20", "decode context 8", "decode 3 at once, context 8"]
    plan = Artifact.open(shakespeare_artifact).plan
    assert measured["kv_dtype"] == plan.kv_dtype != ""
    prefill, _, batch = measured["phases"]
    cost = step_cost(plan, StepShape(new_tokens=20, context=20))
    assert prefill["weight_bytes"] == cost.weight_bytes
    assert prefill["operations"] == cost.operations
    assert (prefill["tokens"], batch["tokens"]) == (20, 3)
    for phase in measured["phases"]:
        assert min(phase["round_seconds"]) <= phase["seconds"] <= max(phase["round_seconds"])
        assert len(phase["round_seconds"]) == 2
        assert phase["share"] == pytest.approx(phase["limit_seconds"] / phase["seconds"])
        assert phase["tokens_per_second"] == pytest.approx(phase["tokens"] / phase["seconds"])
        assert phase["bound"] in ("memory", "arithmetic")


@pytest.mark.thorough
def test_kernels_add_up_to_their_kinds_and_to_the_step(measured, shakespeare_artifact):
    plan = Artifact.open(shakespeare_artifact).plan
    for phase in measured["phases"]:
        assert [k["kernel"] for k in phase["kernels"]] == [k.kernel for k in plan.kernels]
        assert all(k["seconds"] >= 0 for k in phase["kernels"])
        assert sum(row["count"] for row in phase["by_kernel"]) == len(plan.kernels)
        kinds = {(row["kernel"], row["origin"]) for row in phase["by_kernel"]}
        assert len(kinds) == len(phase["by_kernel"]) < len(plan.kernels)
        cost = sum(row["cost"]["weight_bytes"] for row in phase["by_kernel"])
        assert cost == phase["weight_bytes"]


@pytest.mark.thorough
def test_kernels_of_a_decode_have_the_costs_of_the_contexts_at_which_they_were_timed(
    measured, shakespeare_artifact
):
    plan = Artifact.open(shakespeare_artifact).plan
    batch = measured["phases"][2]
    kv_bytes = sum(kernel["cost"]["kv_bytes"] for kernel in batch["kernels"])
    steps = 2 * STEPS  # of the rounds without a clock, and of those with it
    assert kv_bytes == step_cost(plan, StepShape(sequences=3, context=8 + steps * 3 // 2)).kv_bytes
    assert (
        batch["kv_bytes"]
        == step_cost(plan, StepShape(sequences=3, context=8 + steps // 2)).kv_bytes
    )


@pytest.mark.thorough
def test_text_has_a_line_a_phase(shakespeare_artifact, capsys):
    assert main(["bench", str(shakespeare_artifact), *SMALL, "--ops", "--threads", "1"]) == 0
    captured = capsys.readouterr()
    for part in ("GB/s", "of limit", "1 threads", "decode 3 at once", "paged_attention"):
        assert part in captured.out
    assert captured.err.splitlines()[0] == "measuring prefill 20"


@pytest.mark.parametrize("decodes", [False, True])
def test_a_model_whose_logits_are_not_finite_ends_the_bench(
    shakespeare_artifact, capsys, monkeypatch, decodes
):
    """It would wait for tokens forever."""
    add = Engine.add

    def poisoned(self, prompt, params):
        broken = [lambda ids, row: row * np.nan]
        is_decode = params.max_tokens > 1
        return add(self, prompt, replace(params, logits_processors=broken * (is_decode == decodes)))

    monkeypatch.setattr(Engine, "add", poisoned)
    assert main(["bench", str(shakespeare_artifact), *SMALL]) != 0
    assert "not finite" in capsys.readouterr().err


@pytest.mark.thorough
def test_timing_changes_no_output_and_divides_the_time_of_a_step(shakespeare_artifact):
    artifact = Artifact.open(shakespeare_artifact)
    tokens = []
    for timed in (False, True):
        executor = CpuExecutor(artifact, max_model_len=64, num_threads=2)
        if timed:
            executor.clock = np.zeros(len(artifact.plan.kernels) + 1, np.int64)
        engine = Engine(executor, max_model_len=64)
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        sequence = engine.add([5, 6, 7], params)
        while not sequence.finished:
            began = time.perf_counter()
            engine.step()
            elapsed = time.perf_counter() - began
        tokens.append(sequence.token_ids)
        if timed:
            assert executor.clock.min() > 0
            assert executor.clock.sum() <= 1e9 * elapsed
        engine.close()
    assert tokens[0] == tokens[1]


def test_defaults_shrink_to_what_the_artifact_allows():
    names = [phase.name for phase in phases(LIMITS, asked())]
    assert names == ["prefill 63", "decode context 47"]


@pytest.mark.parametrize("values", [{"prompt": 64}, {"context": 48}, {"batch": [5]}])
def test_what_was_asked_for_and_does_not_fit_is_refused(values):
    with pytest.raises(UsageError, match="compiled for"):
        phases(LIMITS, asked(**values))


@pytest.mark.parametrize(
    ("room", "values", "found", "fits"),
    [
        (
            64,
            {"rounds": 10},
            "decode context 1 with 10 rounds needs sequences of 162",
            "--rounds 3",
        ),
        (64, {"context": 60, "rounds": 2}, "decode context 60", "--context 31"),
        (64, {"context": 20, "rounds": 3}, "decode context 20", "--context 15 or --rounds 2"),
        (
            64,
            {"context": 60, "rounds": 5},
            "decode context 60",
            "smaller --context and fewer --rounds",
        ),
        (64, {"prompt": 70}, "prefill 70 with 1 rounds needs", "--prompt 63"),
        (17, {}, "decode context 1 with 1 rounds needs sequences of 18", "--max-model-len"),
        (1, {}, "prefill 1 with 1 rounds needs sequences of 2", "--max-model-len"),
    ],
)
def test_what_does_not_fit_says_which_options_do(room, values, found, fits):
    with pytest.raises(UsageError, match=found) as caught:
        phases(replace(LIMITS, max_model_len=room), asked(**values))
    assert caught.value.hint.startswith(f"The artifact was compiled for {room}: ")
    assert caught.value.hint.endswith(f"{fits}.")
