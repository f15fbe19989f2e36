"""Ends answers at strings and tokens."""

import sys

from vllm import LLM, SamplingParams


def main(model):
    llm = LLM(model=model, max_num_seqs=4, max_num_batched_tokens=24)
    free = llm.generate("The dog", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    text, tokens = free[0].outputs[0].text, free[0].outputs[0].token_ids
    stop, stop_token = text[4:6], tokens[5]
    params = [
        SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=[stop, "never"]),
        SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[stop_token]),
    ]
    outputs = llm.generate(["The dog"] * 2, params)
    for output, reason in zip(outputs, (stop, stop_token), strict=True):
        completion = output.outputs[0]
        print(completion.finish_reason, completion.stop_reason == reason)
        print(text.startswith(completion.text) and len(completion.text) < len(text))


if __name__ == "__main__":
    main(sys.argv[1])
