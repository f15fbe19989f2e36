"""Serves an artifact of ours."""

from __future__ import annotations

from loop import Generate, seconds_of, serve

import ingot


def open_model(path: str, threads: int, context: int) -> Generate:
    llm = ingot.LLM(path, num_threads=threads, max_model_len=context)

    def generate(tokens: list[int], new_tokens: int) -> list[float]:
        params = ingot.SamplingParams(
            temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False
        )
        return seconds_of(llm.stream({"prompt_token_ids": tokens}, params))

    return generate


if __name__ == "__main__":
    serve(open_model)
