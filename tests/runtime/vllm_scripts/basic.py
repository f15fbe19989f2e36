"""Completes a few prompts at once."""

import sys

from vllm import LLM, SamplingParams

PROMPTS = ["The dog is", "A lazy fox", "the the", "héllo"]


def main(model):
    llm = LLM(model=model, tensor_parallel_size=1, gpu_memory_utilization=0.9, enforce_eager=True)
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0.8, top_p=0.95))
    for output in outputs:
        print(f"{output.prompt!r} -> {output.outputs[0].text!r}")


if __name__ == "__main__":
    main(sys.argv[1])
