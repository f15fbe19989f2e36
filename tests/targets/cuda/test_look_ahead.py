"""Steps that the simulated device is given before the host has seen the tokens of the last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingot import LLM, SamplingParams
from ingot.runtime.config import EngineConfig
from ingot.runtime.devices.cuda.executor import CudaExecutor
from ingot.runtime.devices.cuda.sampler import DeviceSampler
from ingot.targets.cuda.simulated import SimulatedDriver
from tests.support.tiny_models import save_random
from tests.targets.cuda.failing import IdleDriver
from tests.targets.cuda.simulation import compile_sketch, simulated

SHORT: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True, "detokenize": False}
GREEDY = SamplingParams(temperature=0, **SHORT)
SAMPLED = SamplingParams(temperature=1.5, seed=3, top_k=40, **SHORT)
BIASED = SamplingParams(temperature=1.5, seed=3, logit_bias={7: 4.0}, **SHORT)
PENALIZED = SamplingParams(temperature=0, frequency_penalty=1.0, **SHORT)
SCORED = SamplingParams(temperature=0, logprobs=1, **SHORT)
ALL_SCORED = SamplingParams(temperature=0, logprobs=-1, **SHORT)
PROMPT_SCORED = SamplingParams(temperature=0, logprobs=3, prompt_logprobs=2, **SHORT)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    model_dir = save_random("qwen3", folder / "model", tokenizer=True)
    return compile_sketch(
        model_dir, folder / "a.ingot", dtype="float32", max_model_len=64, max_num_seqs=4,
        max_num_batched_tokens=32,
    )  # fmt: skip


class Watched(IdleDriver):
    """Counts the steps that are submitted beside another, and the most that are under way."""

    under_way = most_under_way = num_ahead = 0

    def mark(self) -> int:
        self.under_way += 1
        type(self).num_ahead += self.under_way > 1
        type(self).most_under_way = max(self.most_under_way, self.under_way)
        return super().mark()

    def wait(self, mark: int) -> None:
        super().wait(mark)
        self.under_way -= 1


@pytest.fixture
def watched() -> Iterator[type[Watched]]:
    yield Watched
    Watched.most_under_way = Watched.num_ahead = 0


@pytest.mark.parametrize("params, most", [
    (GREEDY, 2), (SAMPLED, 2), (BIASED, 2), (SCORED, 2), (PENALIZED, 1), (ALL_SCORED, 1),
])  # fmt: skip
def test_a_step_waits_for_the_host_only_where_its_draws_need_the_tokens(
    artifact: Path, watched: type[Watched], params: SamplingParams, most: int
) -> None:
    with simulated(artifact, driver=watched) as llm:
        llm.generate([[1, 2, 3]], params)
    assert watched.most_under_way == most
    assert watched.num_ahead == (4 if most == 2 else 0)


def test_nothing_is_submitted_ahead_without_overlap(artifact: Path, watched: type[Watched]) -> None:
    with simulated(artifact, driver=watched, config=EngineConfig(overlap=False)) as llm:
        llm.generate([[1, 2, 3]], GREEDY)
    assert watched.most_under_way == 1


PROMPTS = [[5, 9, 200, 9], [17] * 3, [250, 3], [1, 2, 3, 4, 5]]
UNLIKE = [GREEDY, SAMPLED, BIASED, PENALIZED]


def drawn(llm: LLM, params: list[SamplingParams]) -> list[Any]:
    """Tokens, and the log-probabilities that some ask for."""
    outputs = llm.generate(PROMPTS[: len(params)], params)
    found = [(output.outputs[0], output.prompt_logprobs) for output in outputs]
    return [(first.token_ids, first.logprobs, scores) for first, scores in found]


@pytest.mark.thorough
def test_tokens_are_those_of_steps_that_wait(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: every token that the host does not know is token 0."""

    def forget(self: CudaExecutor, inputs: Any) -> None:
        for place in inputs.from_draws:
            inputs["tokens"][place] = 0

    scored = [SAMPLED, PROMPT_SCORED, SCORED]
    with simulated(artifact, config=EngineConfig(overlap=False)) as llm:
        expected = [drawn(llm, params) for params in (UNLIKE, scored)]
    with simulated(artifact) as llm:
        assert [drawn(llm, params) for params in (UNLIKE, scored)] == expected
        monkeypatch.setattr(CudaExecutor, "_feed", forget)
        assert drawn(llm, UNLIKE) != expected[0]


def test_siblings_of_a_prompt_of_one_token_are_all_drawn(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a step looks like a decode, and has more draws than sequences."""
    params = SamplingParams(temperature=3, seed=3, n=3, max_tokens=2, ignore_eos=True)
    found = []
    for takes in (DeviceSampler.takes, lambda self, draws: False):
        monkeypatch.setattr(DeviceSampler, "takes", takes)
        with simulated(artifact) as llm:
            found.append([each.token_ids for each in llm.generate([[9]], params)[0].outputs])
    assert found[0] == found[1]


def test_what_is_queued_runs_only_when_it_is_waited_for() -> None:
    """Pinned memory is read then, and other memory at once."""
    driver = SimulatedDriver(1 << 16)
    address = driver.allocate(8)
    pinned, other, got = driver.host_memory(4), driver.host_memory(4).copy(), driver.host_memory(8)
    pinned[:], other[:] = 1, 1
    driver.upload(address, pinned)
    driver.upload(address + 4, other)
    driver.download(got, address)
    mark = driver.mark()
    pinned[:], other[:] = 2, 2
    assert 1 not in got
    driver.wait(mark)
    assert got.tolist() == [2] * 4 + [1] * 4


def test_graphs_are_captured_for_the_length_of_the_longest_sequence(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[tuple[int, int, bool]] = []

    monkeypatch.setattr("ingot.runtime.devices.cuda.executor.LEAST_KEYS", 4)
    with simulated(artifact, driver=IdleDriver) as llm:
        llm.generate(
            [[1, 2, 3], [4]], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        )
        graphs += llm._engine._executor._graphs  # type: ignore[attr-defined]
    assert graphs == [(2, n, True) for n in (4, 8, 16, 32)]
