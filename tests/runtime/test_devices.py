"""What an executor owes the engine: `ingot.runtime.executor`."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ingot.artifact.reader import Artifact
from ingot.errors import IncompatibleHostError, InternalError
from ingot.runtime.batch import BatchBuilder
from ingot.runtime.devices import open_executor
from ingot.runtime.devices.cpu import CpuExecutor
from ingot.runtime.executor import Scoring, StepWants
from ingot.runtime.params import SamplingParams
from ingot.runtime.sequence import Sequence
from tests.runtime.fake_model import NAN_TOKEN, PAGE_SIZE, greedy, logits, logprobs

GREEDY = SamplingParams(temperature=0)


@pytest.fixture
def executor(fake_artifact):
    opened = open_executor(Artifact.open(fake_artifact), max_model_len=96)
    yield opened
    opened.close()


def sequence(tokens, **params):
    return Sequence(0, list(tokens), replace(GREEDY, **params), 96)


def lay_out(inputs, *parts):
    """A step of tokens, given as (tokens, start, pages, rows)."""
    inputs.clear()
    held = [page_ids for _, _, page_ids, _ in parts]
    pages = SimpleNamespace(page_size=PAGE_SIZE, page_ids=held.__getitem__)
    builder = BatchBuilder(inputs, SimpleNamespace(pages=pages))
    for number, (tokens, start, _, num_rows) in enumerate(parts):
        builder.append(tokens, start, number, num_rows)
    return inputs


def test_an_executor_is_found_by_the_kind_of_target(executor, fake_artifact, monkeypatch):
    assert isinstance(executor, CpuExecutor)
    artifact = Artifact.open(fake_artifact)
    artifact.__dict__["target"] = replace(artifact.target, name="tpu:v9")
    with pytest.raises(IncompatibleHostError, match="tpu:v9"):
        open_executor(artifact, max_model_len=96)


@pytest.mark.parametrize("beside", [False, True])
def test_rows_draw_score_and_come_back_as_they_were_asked_for(executor, beside):
    one, two = sequence([1, 2, 3]), sequence([4, 5], logprobs=1)
    inputs = lay_out(executor.inputs[0], ([1, 2, 3], 0, [0], 3), ([4, 5], 0, [1], 1))
    draws = StepWants(
        sequences=[two, one, one], rows=[3, 2, 2], scorings=[Scoring(0, [2, 3], 0)], kept=[2, 0]
    )
    drawn = executor.submit(inputs, draws, beside=beside).wait()
    expected = [*greedy([4, 5], 1), *greedy([1, 2, 3], 1) * 2]
    assert [draw.token for draw in drawn.tokens] == expected
    assert len(drawn.tokens[0].logprobs) and not drawn.tokens[1].logprobs
    rows = logprobs([1, 2, 3])
    assert [entry[token].logprob for entry, token in zip(drawn.scores[0], [2, 3], strict=True)] == [
        pytest.approx(rows[0, 2], abs=1e-5),
        pytest.approx(rows[1, 3], abs=1e-5),
    ]
    assert np.array_equal(drawn.rows["logits"], logits([1, 2, 3])[[2, 0]]) and drawn.seconds > 0


@pytest.mark.parametrize("beside", [False, True])
def test_a_token_of_the_step_before_is_filled_in(executor, beside):
    """The host never writes it: the places name the draws, in any order."""
    one, two = sequence([1, 2, 3]), sequence([4, 5])
    first = lay_out(executor.inputs[0], ([1, 2, 3], 0, [0], 1), ([4, 5], 0, [1], 1))
    pending = executor.submit(first, StepWants([one, two], [0, 1]), beside=beside)
    second = lay_out(executor.inputs[1], ([0], 2, [1], 1), ([0], 3, [0], 1))
    second.from_draws.update({0: 1, 1: 0})
    tokens = [draw.token for draw in pending.wait().tokens]
    one.token_ids.append(tokens[0])
    two.token_ids.append(tokens[1])
    drawn = executor.submit(second, StepWants([two, one], [0, 1]), beside=beside).wait()
    assert [draw.token for draw in drawn.tokens] == [greedy([4, 5], 2)[1], greedy([1, 2, 3], 2)[1]]


def test_errors_are_those_of_a_row(executor):
    inputs = lay_out(executor.inputs[0], ([NAN_TOKEN, 1], 0, [0], 2), ([4], 0, [1], 1))
    scorings = [Scoring(0, [1], 0), Scoring(1, [1], 0)]
    draws = StepWants([sequence([4])], [2], [1], scorings)
    drawn = executor.submit(inputs, draws).wait()
    assert isinstance(drawn.scores[0], InternalError) and not isinstance(drawn.scores[1], Exception)
    assert drawn.tokens[0].token == greedy([4], 1)[0]


def test_logits_of_the_host_are_drawn_from_without_a_step(executor):
    rows = logits([1, 2])
    found = executor.draw(rows, [sequence([1]), sequence([1, 2])])
    assert [draw.token for draw in found] == [greedy([1], 1)[0], greedy([1, 2], 1)[0]]
