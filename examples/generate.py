"""Completes several prompts at once; they share the steps of the model."""

import sys

import ingot

PROMPTS = ["ROMEO:\n", "First Citizen:\n", "To be, or not"]

with ingot.LLM(sys.argv[1]) as llm:
    params = ingot.SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=40)
    for request in llm.generate(PROMPTS, params):
        completion = request.outputs[0]
        print(f"--- {completion.finish_reason} after {len(completion.token_ids)} tokens")
        print(request.prompt + completion.text)
