"""Serves an artifact of ours."""

from __future__ import annotations

from loop import Generate, in_two_turns, seconds_of, serve

import ingot


def open_model(path: str, threads: int, context: int, streams: int) -> Generate:
    llm = ingot.LLM(path, num_threads=threads, max_model_len=context, max_num_seqs=streams)

    def params(new_tokens: int) -> ingot.SamplingParams:
        return ingot.SamplingParams(
            temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False
        )

    def complete(prompts: list[list[int]], new_tokens: int) -> object:
        return llm.generate(
            [{"prompt_token_ids": tokens} for tokens in prompts], params(new_tokens)
        )

    def alone(prompts: list[list[int]], new_tokens: int) -> list[float]:
        return seconds_of(llm.stream({"prompt_token_ids": prompts[0]}, params(new_tokens)))

    return alone if streams == 1 else in_two_turns(complete)


if __name__ == "__main__":
    serve(open_model)
