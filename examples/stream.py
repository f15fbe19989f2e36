"""Prints a completion while it is written, up to the first empty line."""

import sys

import ingot

with ingot.LLM(sys.argv[1]) as llm:
    params = ingot.SamplingParams(temperature=0.8, seed=3, max_tokens=120, stop=["\n\n"])
    for delta in llm.stream("JULIET:\n", params):
        print(delta.text, end="", flush=True)
    print(f"\n--- ended by {delta.stop_reason or delta.finish_reason!r}")
