"""Draws several completions of one prompt, and keeps the one that the model finds likeliest."""

import sys

import ingot

with ingot.LLM(sys.argv[1]) as llm:
    params = ingot.SamplingParams(n=4, temperature=1.0, seed=7, max_tokens=24, logprobs=0)
    (request,) = llm.generate(["The king is"], params)

# By the mean of a token: the sum is lower for every token more.
means = [each.cumulative_logprob / len(each.token_ids) for each in request.outputs]
for mean, completion in sorted(zip(means, request.outputs, strict=True), key=lambda each: -each[0]):
    print(f"{mean:6.2f}  {completion.text!r}")
