"""Shows that prompts with a common beginning give the same text with the prefix cache."""

import sys

from vllm import LLM, SamplingParams

PREFIX = "The quick brown fox jumps over the lazy dog. "
PROMPTS = [PREFIX + rest for rest in ("The dog is", "A fox", "The world")]


def main(model):
    params = SamplingParams(temperature=0.0, max_tokens=8)
    plain = LLM(model=model, enable_prefix_caching=False)
    expected = [output.outputs[0].text for output in plain.generate(PROMPTS, params)]
    cached = LLM(model=model, enable_prefix_caching=True)
    cached.generate(PROMPTS[0], params)  # fills the cache
    outputs = cached.generate(PROMPTS, params)
    print([output.outputs[0].text for output in outputs] == expected)
    print(all(output.num_cached_tokens > 0 for output in outputs))


if __name__ == "__main__":
    main(sys.argv[1])
