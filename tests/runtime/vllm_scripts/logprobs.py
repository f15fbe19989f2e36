"""Prints how likely the model finds each token of a prompt, and of its own answer."""

import sys

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt


def main(model):
    llm = LLM(model=model, dtype="auto", swap_space=4)
    params = SamplingParams(temperature=0.0, max_tokens=2, logprobs=1, prompt_logprobs=1)
    output = llm.generate(TokensPrompt(prompt_token_ids=[5, 6, 7]), params)[0]
    for token, entries in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True):
        print(token, entries and entries[token].logprob)
    for token, entries in zip(output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True):
        print(token, entries[token].rank, repr(entries[token].decoded_token))
    print(output.outputs[0].cumulative_logprob)


if __name__ == "__main__":
    main(sys.argv[1])
