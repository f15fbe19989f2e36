"""Whole requests whose tokens are drawn and scored on the simulated device, against the host's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pytest

from ingot import LLM, SamplingParams
from ingot.runtime.config import EngineConfig
from ingot.runtime.devices.cuda.sampler import DeviceSampler
from ingot.runtime.output import Logprob
from ingot.targets.cuda.simulated import SimulatedDriver
from tests.support.tiny_models import save_random
from tests.targets.cuda.simulation import compile_sketch, simulated

PROMPTS = [[5, 9, 200, 9], [17] * 3, [250, 3], [1, 2, 3, 4, 5]]
ROW_BYTES = 4 * 256  # of logits
SHORT: dict[str, Any] = {"max_tokens": 3, "ignore_eos": True, "detokenize": False}
PARAMS = [
    SamplingParams(temperature=0, **SHORT),
    SamplingParams(temperature=1.5, seed=4, n=2, top_k=20, top_p=0.9, **SHORT),
    SamplingParams(
        temperature=0.9, seed=5, min_p=0.01, repetition_penalty=1.4, frequency_penalty=0.3,
        presence_penalty=-0.2, **SHORT,
    ),
    SamplingParams(
        temperature=3, seed=6, logit_bias={7: 4.0, 11: 4.0}, min_tokens=2,
        stop_token_ids=[7], bad_words=[], **SHORT,
    ),
]  # fmt: skip


BOTH: dict[str, Any] = {"logprobs": 3, "prompt_logprobs": 2, **SHORT}
SCORED = [
    SamplingParams(temperature=0, **BOTH),
    SamplingParams(temperature=0, logit_bias={7: 3.0, 11: -2.0}, repetition_penalty=1.2, **BOTH),
]
SCORED_PROMPTS = PROMPTS[1:3]
# Logits of the two targets differ by the order of their sums.
BETWEEN_TARGETS = 1e-5
Scores = list[dict[int, Logprob] | None]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    model_dir = save_random("qwen3", folder / "model", tokenizer=True)
    return compile_sketch(
        model_dir, folder / "a.ingot", ("cuda:sm_90", "cpu:native"), dtype="float32",
        max_model_len=64, max_num_seqs=8, max_num_batched_tokens=32,
    )  # fmt: skip


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of every copy from the device."""
    sizes: list[int] = []
    original = SimulatedDriver.download

    def counted(self: SimulatedDriver, data: npt.NDArray[Any], address: int) -> None:
        sizes.append(data.nbytes)
        original(self, data, address)

    monkeypatch.setattr(SimulatedDriver, "download", counted)
    return sizes


def tokens_of(artifact: Path, params: Sequence[SamplingParams]) -> list[list[list[int]]]:
    with simulated(artifact) as llm:
        outputs = llm.generate(PROMPTS[: len(params)], list(params))
        return [[each.token_ids for each in output.outputs] for output in outputs]


@pytest.mark.thorough
def test_tokens_are_those_that_the_host_draws(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, downloads: list[int]
) -> None:
    by_device = tokens_of(artifact, PARAMS)
    assert max(downloads) < ROW_BYTES
    monkeypatch.setattr(DeviceSampler, "takes", lambda self, draws: False)
    assert by_device == tokens_of(artifact, PARAMS)
    assert max(downloads) >= ROW_BYTES


@pytest.mark.thorough
def test_completions_are_held_to_their_form_by_the_device(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, downloads: list[int]
) -> None:
    """Beside a request without a form, which alone would be given two steps at once."""
    held = [
        SamplingParams(structured_outputs={"choice": ["a dog", "cats", "no"]}, seed=1),
        SamplingParams(structured_outputs={"regex": "[a-z]{2,4}(!|\\?)"}, temperature=0),
        PARAMS[0],
    ]
    with simulated(artifact) as llm:
        outputs = llm.generate(PROMPTS[: len(held)], held)
    assert outputs[0].outputs[0].text in {"a dog", "cats", "no"}
    assert re.fullmatch(r"[a-z]{2,4}(!|\?)", outputs[1].outputs[0].text)
    assert max(downloads) < ROW_BYTES
    by_device = [[each.token_ids for each in output.outputs] for output in outputs]
    monkeypatch.setattr(DeviceSampler, "takes", lambda self, draws: False)
    assert by_device == tokens_of(artifact, held)


@pytest.mark.thorough
def test_logits_that_are_kept_are_those_before_edits(artifact: Path, downloads: list[int]) -> None:
    """The second round draws its first tokens from the logits of the first."""
    rounds = []
    with simulated(artifact, config=EngineConfig(logits_cache_bytes=1 << 20)) as llm:
        for _ in range(2):
            outputs = llm.generate(PROMPTS[2:3], PARAMS[2:3])
            rounds.append(outputs[0].outputs[0].token_ids)
            assert (max(downloads) >= ROW_BYTES) == (len(rounds) == 1)
            downloads.clear()
    assert rounds[0] == rounds[1]


def scored(llm: LLM) -> Scores:
    """The log-probabilities of each prompt and of what was drawn after it."""
    found: Scores = []
    for output in llm.generate(SCORED_PROMPTS, SCORED):
        found += [*(output.prompt_logprobs or []), *(output.outputs[0].logprobs or [])]
    return found


@pytest.mark.thorough
def test_log_probabilities_are_those_that_the_host_finds(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, downloads: list[int]
) -> None:
    """To the bit. Less is copied than one row of logits."""
    with simulated(artifact) as llm:
        by_device = scored(llm)
    assert max(downloads) < ROW_BYTES
    monkeypatch.setattr(DeviceSampler, "takes", lambda self, draws: False)
    with simulated(artifact) as llm:
        assert scored(llm) == by_device
    assert max(downloads) >= ROW_BYTES


@pytest.mark.thorough
def test_log_probabilities_are_those_of_the_cpu(artifact: Path, downloads: list[int]) -> None:
    with simulated(artifact) as llm:
        ours = scored(llm)
    assert max(downloads) < ROW_BYTES
    with LLM(artifact, device="cpu") as llm:
        theirs = scored(llm)
    assert len(ours) == sum(map(len, SCORED_PROMPTS)) + 2 * SHORT["max_tokens"]
    for found, expected in zip(ours, theirs, strict=True):
        if found is None or expected is None:  # before the first token of a prompt
            assert found is expected
            continue
        assert [(t, s.rank) for t, s in found.items()] == [(t, s.rank) for t, s in expected.items()]
        for token, score in found.items():
            assert score.logprob == pytest.approx(expected[token].logprob, abs=BETWEEN_TARGETS)


@pytest.mark.thorough
def test_more_log_probabilities_are_found_by_the_host(artifact: Path, downloads: list[int]) -> None:
    params = SamplingParams(temperature=0, logprobs=21, **SHORT)
    with simulated(artifact) as llm:
        (output,) = llm.generate(PROMPTS[2:3], params)
    assert [len(each) for each in output.outputs[0].logprobs or []] == [21] * 3
    assert max(downloads) >= ROW_BYTES
