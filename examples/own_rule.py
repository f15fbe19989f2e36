"""Edits the logits before each draw: here no token with the letter s is ever written."""

import sys

import numpy as np

import ingot

with ingot.LLM(sys.argv[1]) as llm:
    tokenizer = llm.get_tokenizer()
    size = llm.artifact.manifest.model.vocab_size
    has_s = np.array(["s" in tokenizer.decode([token]).lower() for token in range(size)])

    def without_s(generated: list[int], logits: np.ndarray) -> np.ndarray:
        logits[has_s] = -np.inf
        return logits

    params = ingot.SamplingParams(
        temperature=0.8, seed=2, max_tokens=60, logits_processors=[without_s]
    )
    print(llm.generate(["MIRANDA:\n"], params)[0].outputs[0].text)
