"""Do requests draw the same tokens alone, together, after a prefix hit and after a preemption?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.gpu.results import Faults
from bench.gpu.setting import Setting
from bench.gpu.ways import plain_launches
from ingot import SamplingParams
from ingot.runtime.config import EngineConfig
from ingot.runtime.devices.cuda.sampler import DeviceSampler
from ingot.runtime.llm import LLM

Tokens = list[list[list[int]]]  # of each request, of each of its completions
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 1.5, "seed": 4, "n": 2, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.9, "seed": 5, "min_p": 0.01, "repetition_penalty": 1.4,
     "frequency_penalty": 0.3, "presence_penalty": -0.2},
    {"temperature": 3, "seed": 6, "logit_bias": {7: 4.0, 11: 4.0}},
    {"temperature": 0, "repetition_penalty": 1.2},
    {"temperature": 1, "seed": 7},
    {"temperature": 0.7, "seed": 8, "top_p": 0.5},
    {"temperature": 2, "seed": 9, "top_k": 3, "min_p": 0.05},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Load:
    """Eight requests; the first half of all prompts is the same.

    Attributes:
        prompt: tokens of the shortest prompt; each next one has one more.
        new: tokens that each draws.
    """

    prompt: int = 40
    new: int = 24

    def prompts(self, vocab_size: int) -> list[list[int]]:
        rng = np.random.default_rng(2)
        shared: list[int] = rng.integers(0, vocab_size, self.prompt // 2).tolist()
        rest = self.prompt - len(shared)
        return [shared + rng.integers(0, vocab_size, rest + n).tolist() for n in range(len(KINDS))]

    def params(self) -> list[SamplingParams]:
        common: dict[str, Any] = {
            "max_tokens": self.new, "ignore_eos": True, "detokenize": False,
        }  # fmt: skip
        return [SamplingParams(**kind, **common) for kind in KINDS]


def requests(
    setting: Setting, name: str, *, load: Load | None = None, ways: Sequence[str] = ()
) -> None:
    """Raises RuntimeError that names the ways in which other tokens were drawn."""
    load = load or Load()
    expected: Tokens = []
    faults = Faults()
    for way in ways or WAYS:
        with faults.of(way):
            found = WAYS[way](setting, name, load)
            expected = expected or found
            fault = other_tokens(expected, found)
            setting.report.note(ways={way: fault or "equal"})
            faults.add(way, fault)
    if len({str(each) for each in expected}) == 1:
        faults.add("together", "all requests draw the same tokens")
    faults.raise_found()


def other_tokens(expected: Tokens, found: Tokens) -> str:
    """Which requests drew other tokens; empty where none did."""
    both = enumerate(zip(expected, found, strict=True))
    bad = [str(number) for number, (one, other) in both if one != other]
    return f"other tokens in requests {', '.join(bad)}" if bad else ""


def drawn(llm: LLM, load: Load) -> Tokens:
    """What is drawn when all requests come at once."""
    prompts = load.prompts(llm.artifact.manifest.model.vocab_size)
    outputs = llm.generate(prompts, load.params(), use_tqdm=False)
    return [[each.token_ids for each in output.outputs] for output in outputs]


def _together(setting: Setting, name: str, load: Load) -> Tokens:
    with setting.llm(name) as llm:
        return drawn(llm, load)


def _alone(setting: Setting, name: str, load: Load) -> Tokens:
    with setting.llm(name, config=EngineConfig(prefix_cache=False)) as llm:
        prompts = load.prompts(llm.artifact.manifest.model.vocab_size)
        outputs = [
            llm.generate([prompt], params, use_tqdm=False)[0]
            for prompt, params in zip(prompts, load.params(), strict=True)
        ]
        return [[each.token_ids for each in output.outputs] for output in outputs]


def _after_a_prefix_hit(setting: Setting, name: str, load: Load) -> Tokens:
    with setting.llm(name) as llm:
        drawn(llm, load)
        found = drawn(llm, load)
        hits = llm.counters().prefix_cache.num_hits
    _must_have(hits, "hits of the prefix cache")
    return found


def _after_preemptions(setting: Setting, name: str, load: Load) -> Tokens:
    with setting.llm(name, **cramped(setting, name, load)) as llm:
        found = drawn(llm, load)
        preemptions = llm.counters().num_preemptions
    _must_have(preemptions, "preemptions")
    return found


def _in_chunks(setting: Setting, name: str, load: Load) -> Tokens:
    config = EngineConfig(chunk_tokens=7, max_num_seqs=3, prefix_cache=False)
    with setting.llm(name, config=config) as llm:
        return drawn(llm, load)


def _drawn_by_the_host(setting: Setting, name: str, load: Load) -> Tokens:
    with patch.object(DeviceSampler, "takes", lambda self, draws: False):
        return _together(setting, name, load)


def _without_graphs(setting: Setting, name: str, load: Load) -> Tokens:
    with plain_launches():
        return _together(setting, name, load)


def _without_overlap(setting: Setting, name: str, load: Load) -> Tokens:
    with setting.llm(name, config=EngineConfig(overlap=False)) as llm:
        return drawn(llm, load)


WAYS: dict[str, Callable[[Setting, str, Load], Tokens]] = {
    "together": _together,
    "again": _together,
    "alone": _alone,
    "after a prefix hit": _after_a_prefix_hit,
    "after preemptions": _after_preemptions,
    "in chunks": _in_chunks,
    "drawn by the host": _drawn_by_the_host,
    "without graphs": _without_graphs,
    "without overlap": _without_overlap,
}


def cramped(setting: Setting, name: str, load: Load) -> dict[str, Any]:
    """Options of an engine whose pages do not suffice for all requests at once."""
    artifact = setting.artifact(name)
    plan = artifact.plan_of(artifact.target)
    longest = load.prompt + len(KINDS) + load.new
    pages = 2 * -(-longest // plan.limits.page_size) + 1
    return {"max_model_len": longest, "kv_cache_bytes": pages * sum(plan.page_sizes())}


def _must_have(count: int, what: str) -> None:
    if not count:
        raise RuntimeError(f"there were no {what}, so this shows nothing")
