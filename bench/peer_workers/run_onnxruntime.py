"""Serves a folder of ONNX Runtime GenAI's model builder."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import onnxruntime_genai
from loop import Generate, seconds_of, serve


def open_model(path: str, threads: int, context: int, streams: int) -> Generate:
    config = onnxruntime_genai.Config(path)
    options = {"session_options": {"intra_op_num_threads": threads}}
    config.overlay(json.dumps({"model": {"decoder": options}}))
    model = onnxruntime_genai.Model(config)

    def complete(prompts: list[list[int]], new_tokens: int) -> Iterator[int]:
        params = onnxruntime_genai.GeneratorParams(model)
        params.set_search_options(max_length=context, do_sample=False, batch_size=streams)
        generator = onnxruntime_genai.Generator(model, params)
        generator.append_tokens(np.array(prompts, np.int32))
        for count in range(new_tokens):
            generator.generate_next_token()
            yield count

    return lambda prompts, new_tokens: seconds_of(complete(prompts, new_tokens))


if __name__ == "__main__":
    serve(open_model)
