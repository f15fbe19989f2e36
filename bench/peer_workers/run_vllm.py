"""Serves a model directory with vLLM's build for CPUs."""

from __future__ import annotations

import os

from loop import Generate, in_two_turns, serve

CACHE_GB = 2
LENGTH = 2048  # not less: it compiles for a length, which takes minutes, and keeps the code


def open_model(path: str, threads: int, context: int, streams: int) -> Generate:
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(CACHE_GB)
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
    from vllm import LLM, SamplingParams  # reads the environment

    length = max(context, LENGTH)
    llm = LLM(path, dtype="bfloat16", max_model_len=length, enable_prefix_caching=False)

    def complete(prompts: list[list[int]], new_tokens: int) -> object:
        params = SamplingParams(
            temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False
        )
        asked = [{"prompt_token_ids": tokens} for tokens in prompts]
        return llm.generate(asked, params, use_tqdm=False)

    return in_two_turns(complete)


if __name__ == "__main__":
    serve(open_model)
