"""Whole requests whose tokens are drawn on the simulated device, against the host's draws."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pytest

from ingot import SamplingParams
from ingot.runtime.config import EngineConfig
from ingot.runtime.devices.cuda.sampler import DeviceSampler
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


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    model_dir = save_random("qwen3", folder / "model", tokenizer=True)
    return compile_sketch(
        model_dir, folder / "a.ingot", dtype="float32", max_model_len=64, max_num_seqs=8,
        max_num_batched_tokens=32,
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
