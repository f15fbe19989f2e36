"""The engine on the simulated device: whatever runs beside a request, it gets the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot import LLM, SamplingParams
from ingot.runtime.config import EngineConfig
from ingot.runtime.output import CompletionOutput
from tests.support.core import core
from tests.support.tiny_models import save_random
from tests.targets.cuda.simulation import compile_sketch, simulated

pytestmark = [pytest.mark.deterministic, pytest.mark.thorough]

PAGE = 16
# Log-probabilities show the bits of the logits that they were drawn from.
SCORED: dict[str, Any] = {"logprobs": 4, "max_tokens": 3, "ignore_eos": True, "detokenize": False}
GREEDY = SamplingParams(temperature=0, **SCORED)
DRAWN = SamplingParams(temperature=1.5, seed=3, **SCORED)
Result = tuple[list[int], list[dict[int, float]]]


def prompt(length: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(256, size=length).tolist())


# Qwen3 in bfloat16; one whose windows give pages back while it decodes, and whose cache is in int8;
# one with soft caps; and latent rows, also in int8 and with experts.
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "mistral": {"kv_dtype": "int8"},
    "gemma2": {"kv_dtype": "int8", "quantize": "int8"},
    "deepseek_v2": {},
    "deepseek_v3_experts": {"kv_dtype": "int8"},
}
WINDOW = 6
on_qwen3, on_a_window = (
    pytest.mark.parametrize("artifact", [family], indirect=True) for family in ("qwen3", "mistral")
)
on_all = pytest.mark.parametrize(
    "artifact",
    core("qwen3", further=["mistral"], slow=["gemma2", "deepseek_v2", "deepseek_v3_experts"]),
    indirect=True,
)
# Of latent rows what needs pages the most.
on_latents = pytest.mark.parametrize(
    "artifact",
    core("qwen3", further=["mistral", "deepseek_v2"], slow=["gemma2", "deepseek_v3_experts"]),
    indirect=True,
)


@pytest.fixture(scope="module")
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, family = tmp_path_factory.mktemp("cuda"), request.param
    model_dir = save_random(family, folder / "model", tokenizer=True, layers=2, window=WINDOW)
    return compile_sketch(
        model_dir, folder / "a.ingot", dtype="bfloat16", max_model_len=32, max_num_seqs=8,
        max_num_batched_tokens=32, **MODELS[family],
    )  # fmt: skip


class Alone:
    """What each prompt gets by itself, in a model that keeps nothing of other requests."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self.of = cache(self._of)

    def _of(self, prompt: tuple[int, ...], params: SamplingParams = GREEDY) -> Result:
        return results(self._llm, [prompt], params)[0]


@pytest.fixture(scope="module")
def alone(artifact: Path) -> Iterator[Alone]:
    with simulated(artifact, config=EngineConfig(prefix_cache=False)) as llm:
        yield Alone(llm)


@pytest.fixture(scope="module")
def llm(artifact: Path) -> Iterator[LLM]:
    with simulated(artifact) as llm:
        yield llm


def results(
    llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams = GREEDY
) -> list[Result]:
    outputs = llm.generate([list(each) for each in prompts], params)
    return [result(output.outputs[0]) for output in outputs]


def result(output: CompletionOutput) -> Result:
    """Tokens, and the log-probabilities that came with them."""
    found = [{t: each.logprob for t, each in row.items()} for row in output.logprobs or []]
    return output.token_ids, found


@pytest.mark.cases(thorough=1)
@on_all
@pytest.mark.parametrize("count", core(3, further=[1, 2, 5]))
def test_decodes_are_padded_to_a_bucket(llm: LLM, alone: Alone, count: int) -> None:
    prompts = [prompt(1 + n, n) for n in range(count)]
    assert results(llm, prompts) == [alone.of(each) for each in prompts]


@pytest.mark.cases(thorough=2)
@on_latents
@pytest.mark.parametrize("params", core(GREEDY, further=[DRAWN]), ids=["greedy", "drawn"])
def test_a_prefix_that_was_computed_before_is_found(
    artifact: Path, alone: Alone, params: SamplingParams
) -> None:
    whole = prompt(PAGE + 2, 7)
    with simulated(artifact) as llm:
        for _ in range(2):
            assert results(llm, [whole], params) == [alone.of(whole, params)]
        assert llm.counters().prefix_cache.num_hits == PAGE


@pytest.mark.cases(thorough=1)
@on_latents
@pytest.mark.thorough
def test_a_request_that_gives_up_its_pages_goes_on_later(artifact: Path, alone: Alone) -> None:
    """Three pages for two requests that grow into their second one."""
    prompts = [prompt(PAGE - 1, seed) for seed in (11, 12)]
    with simulated(artifact) as llm:
        page_bytes = sum(llm.artifact.plan.page_sizes())
    with simulated(artifact, kv_cache_bytes=3 * page_bytes) as llm:
        assert results(llm, prompts) == [alone.of(each) for each in prompts]
        assert llm.counters().num_preemptions > 0


@on_a_window
def test_pages_behind_a_window_go_to_others(artifact: Path, alone: Alone) -> None:
    """Three pages for two requests of two, which leave their first one after six tokens."""
    prompts, params = [prompt(PAGE + 2, seed) for seed in (31, 32)], replace(GREEDY, max_tokens=9)
    with simulated(artifact) as llm:
        page_bytes = sum(llm.artifact.plan.page_sizes())
    with simulated(artifact, kv_cache_bytes=3 * page_bytes) as llm:
        assert results(llm, prompts, params) == [alone.of(each, params) for each in prompts]


@pytest.mark.cases(thorough=1)
@on_all
@pytest.mark.parametrize("overlap", core(True, further=[False]))
@pytest.mark.thorough
def test_prompts_in_chunks_run_beside_decodes(artifact: Path, alone: Alone, overlap: bool) -> None:
    """The short one has its tokens before the long one has its first."""
    prompts = [prompt(1, 1), prompt(PAGE + 1, 21)]
    config = EngineConfig(chunk_tokens=6, overlap=overlap)
    with simulated(artifact, config=config) as llm:
        assert results(llm, prompts) == [alone.of(each) for each in prompts]
        assert llm.counters().num_steps >= 5


@on_qwen3
def test_streams_and_requests_that_the_device_draws_for_get_the_same(
    llm: LLM, alone: Alone
) -> None:
    """Without log-probabilities no logits leave the device."""
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, detokenize=False)
    first, second = prompt(3, 2), prompt(4, 3)
    stream = llm.stream(list(first), params)
    others = results(llm, [second], params)
    streamed = [token for delta in stream for token in delta.token_ids]
    assert streamed == alone.of(first)[0]
    assert others[0][0] == alone.of(second)[0]


@on_qwen3
def test_logits_processors_see_the_logits_of_the_device(llm: LLM, alone: Alone) -> None:
    """One that changes nothing changes nothing; one that changes a logit, no other request."""
    seen: list[np.ndarray[Any, Any]] = []

    def look(token_ids: Any, logits: Any) -> Any:
        seen.append(np.array(logits))
        return logits

    def insist(token_ids: Any, logits: Any) -> Any:
        logits[42] = 1e4
        return logits

    prompts = [prompt(3, 2), prompt(4, 3), prompt(2, 1)]
    extras: list[dict[str, Any]] = [
        {"logits_processors": [look]}, {}, {"logits_processors": [insist]}
    ]  # fmt: skip
    outputs = llm.generate(
        [list(each) for each in prompts],
        [SamplingParams(temperature=0, **SCORED, **extra) for extra in extras],
    )
    found = [result(output.outputs[0]) for output in outputs]
    assert found[:2] == [alone.of(each) for each in prompts[:2]]
    assert found[2][0] == [42] * 3
    assert [int(row.argmax()) for row in seen] == found[0][0]
