"""Finds likely completions by beam search."""

import sys

from vllm import LLM
from vllm.sampling_params import BeamSearchParams


def main(model):
    llm = LLM(model=model)
    params = BeamSearchParams(beam_width=3, max_tokens=5, ignore_eos=True)
    for output in llm.beam_search([{"prompt": "The dog"}, {"prompt": "A fox"}], params):
        for beam in output.sequences:
            print(f"{beam.cum_logprob:.3f} {len(beam.logprobs)} {beam.text!r}")


if __name__ == "__main__":
    main(sys.argv[1])
