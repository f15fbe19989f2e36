"""What a step leaves of its logits for the sampler is what the sampler would find in them."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.runtime.devices.sampler import Sampler
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from tests.support.core import core

VOCABULARY = 2048
PROMPTS = [[5, 6, 7], [300, 2, 19, 1000], [42], [9, 9], [1999, 4]]


def without_best(generated, logits):
    logits[logits.argmax()] = -np.inf
    return logits


def nearly_always_68(generated, logits):
    return logits + 30 * (np.arange(len(logits)) == 68)


PARAMS = (
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=3, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=3, top_k=20, top_p=0.9, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0, repetition_penalty=1.5, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0, logit_bias={7: 4.0}, logprobs=3, max_tokens=24, ignore_eos=True),
    *(
        SamplingParams(temperature=t, seed=4, logits_processors=[p], max_tokens=24, ignore_eos=True)
        for p in (without_best, nearly_always_68)
        for t in (0, 1)
    ),
)


class Compared:
    """Stands before an executor's sampler and counts the tokens that numpy would not draw."""

    def __init__(self, llm: LLM, change=lambda logits: None) -> None:
        self.num_draws = self.differing = 0
        self._change = change
        self._numpy, executor = Sampler(VOCABULARY), llm._engine._executor
        self._sampler, executor._sampler = executor._sampler, self

    def sample(self, logits, sequences):
        self._change(logits)
        expected = self._numpy.sample(np.array(logits), sequences)
        draws = self._sampler.sample(logits, sequences)
        self.num_draws += len(draws)
        self.differing += sum(
            draw.token != other.token for draw, other in zip(draws, expected, strict=True)
        )
        return draws

    result = Sampler.result  # by the methods of this one


@pytest.mark.cases(core=2, thorough=5)
@pytest.mark.parametrize("num_prompts", core(3, further=[1, 2, 5]))
@pytest.mark.parametrize("threads", core(1, 3, further=[2, 7]))
def test_tokens_are_those_of_a_sampler_that_looks_itself(
    shakespeare_artifact, threads, num_prompts
):
    with LLM(shakespeare_artifact, max_model_len=64, num_threads=threads) as llm:
        compared = Compared(llm)
        for params in PARAMS:
            llm.generate(PROMPTS[:num_prompts], params)
    assert (compared.num_draws, compared.differing) == (len(PARAMS) * 24 * num_prompts, 0)


def test_it_is_what_the_step_has_left_that_is_used(shakespeare_artifact):
    """The negative control: logits that change after the step are not looked at again."""

    def raise_one(logits):
        logits[:, 1234] = 1e3

    with LLM(shakespeare_artifact, max_model_len=64, num_threads=1) as llm:
        compared = Compared(llm, raise_one)
        llm.generate(PROMPTS[:1], PARAMS[0])
    assert compared.differing == compared.num_draws == 24
