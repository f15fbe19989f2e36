"""Serves a GGUF file with OpenVINO GenAI, which converts it as it loads it."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import openvino_genai
from loop import Generate, in_two_turns, serve


def open_model(path: str, threads: int, context: int, streams: int) -> Generate:
    pipeline = openvino_genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads)

    def complete(prompts: list[list[int]], new_tokens: int) -> Any:
        config = openvino_genai.GenerationConfig(
            max_new_tokens=new_tokens, min_new_tokens=new_tokens, ignore_eos=True, do_sample=False
        )
        ids = np.array(prompts, np.int64)
        mask = openvino.Tensor(np.ones_like(ids))
        return pipeline.generate(openvino_genai.TokenizedInputs(openvino.Tensor(ids), mask), config)

    def alone(prompts: list[list[int]], new_tokens: int) -> list[float]:
        # It gives all tokens at once, and keeps the time of each: milliseconds on average.
        metrics = complete(prompts, new_tokens).perf_metrics
        later = metrics.get_tpot().mean / 1e3
        return [metrics.get_ttft().mean / 1e3] + [later] * (new_tokens - 1)

    return alone if streams == 1 else in_two_turns(complete)


if __name__ == "__main__":
    serve(open_model)
