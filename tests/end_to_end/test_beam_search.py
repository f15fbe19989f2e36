"""Beam search on a compiled model, against `transformers`."""

from __future__ import annotations

import pytest
import torch

from ingot.runtime.beam_search import BeamSearchParams
from ingot.runtime.llm import LLM
from tests.end_to_end.support import Compile, Compiled, judge, random_tokens

BEAMS, NEW_TOKENS = 4, 10


def test_beams_are_those_of_transformers(compiled: Compiled) -> None:
    model_dir, artifact = compiled(Compile("gemma2", "float32", 312))  # others compile it, too
    reference = judge(model_dir)
    prompts = [random_tokens(length) for length in (3, 20)]
    params = BeamSearchParams(beam_width=BEAMS, max_tokens=NEW_TOKENS, ignore_eos=True)
    with LLM(artifact) as llm:
        outputs = llm.beam_search(prompts, params)
    for prompt, output in zip(prompts, outputs, strict=True):
        theirs = reference.generate(
            torch.tensor([prompt]),
            num_beams=BEAMS,
            num_return_sequences=BEAMS,
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            length_penalty=0.0,
            eos_token_id=None,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
        assert [beam.tokens for beam in output.sequences] == theirs.sequences.tolist()
        scores = [beam.cum_logprob for beam in output.sequences]
        assert scores == pytest.approx(theirs.sequences_scores.tolist(), abs=1e-3)
