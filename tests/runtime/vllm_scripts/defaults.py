"""Samples as the model's authors recommend it, except for the length."""

import sys

from vllm import LLM


def main(model):
    llm = LLM(model=model, generation_config="auto", disable_log_stats=True)
    sampling_params = llm.get_default_sampling_params()
    print(sampling_params.temperature, sampling_params.top_p, sampling_params.max_tokens)
    sampling_params.max_tokens = 3
    for output in llm.generate("The dog is", sampling_params):
        print(len(output.outputs[0].token_ids))


if __name__ == "__main__":
    main(sys.argv[1])
