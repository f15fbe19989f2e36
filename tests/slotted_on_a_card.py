"""Runs the model of docs/add_a_state.md on the simulated device; see tests/test_add_a_state.py."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from faded import save_model  # type: ignore[import-not-found]

from ingot import LLM, SamplingParams
from ingot.runtime.config import EngineConfig
from ingot.runtime.output import RequestOutput
from tests.targets.cuda.simulation import compile_sketch, simulated

PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=2, detokenize=False)
IDS = np.random.default_rng(1).integers(256, size=20).tolist()
PROMPTS = [IDS[:length] for length in (18, 20, 3, 1)]


def results(outputs: Sequence[RequestOutput]) -> list[object]:
    return [(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in outputs]


def main(folder: Path) -> None:
    artifact = compile_sketch(
        save_model(folder / "model").path, folder / "a.ingot", dtype="float32", max_model_len=32,
        max_num_seqs=4, max_num_batched_tokens=32, programs=("step", "hidden"),
    )  # fmt: skip
    with simulated(artifact, config=EngineConfig(prefix_cache=False)) as llm:
        alone = [results(llm.generate([prompt], PARAMS))[0] for prompt in PROMPTS]
        assert results(llm.generate(PROMPTS, PARAMS)) == alone, "in company"
        plan = llm.artifact.plan
    assert plan.slot_bytes and not plan.rewinds
    with simulated(artifact, config=EngineConfig(chunk_tokens=5)) as llm:
        assert results(llm.generate(PROMPTS, PARAMS)) == alone, "in chunks"
        again = llm.generate(PROMPTS, PARAMS)
        assert results(again) == alone, "with known beginnings"
        assert again[0].num_cached_tokens == 16
        check_embeddings(llm)
    few = 3 * sum(plan.page_sizes()) + 3 * plan.slot_bytes + 1024
    with simulated(artifact, kv_cache_bytes=few, config=EngineConfig(prefix_cache=False)) as llm:
        assert results(llm.generate(PROMPTS[:2], PARAMS)) == alone[:2], "with little memory"
    print("all bits are the same")


def check_embeddings(llm: LLM) -> None:
    """The second program has slots of its own sequences, beside those of requests."""
    together = llm.embed(PROMPTS, pooling="last")
    for prompt, vector in zip(PROMPTS, together, strict=True):
        (single,) = llm.embed([prompt], pooling="last")
        assert single.outputs.embedding == vector.outputs.embedding


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
