"""`ingot bench --speculative`: what it compares and how it adds up, never how fast anything is."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from ingot.artifact.reader import Artifact
from ingot.cli.bench.bench import speculated_tokens
from ingot.cli.bench.report import speculation_object, speculation_text
from ingot.cli.bench.speculation import (
    ANSWER,
    BenchText,
    BenchTurn,
    SpeculationRunner,
    SpeculationTurns,
    steered,
    texts,
)
from ingot.cli.main import main
from ingot.cli.output import json_text
from ingot.errors import IngotError, InternalError, UsageError
from ingot.runtime import drawing
from ingot.runtime.devices.cpu import CpuExecutor
from ingot.runtime.params import SamplingParams
from ingot.runtime.speculation import Speculation
from tests.cli.bench.test_bench import SMALL, asked
from tests.cli.sample_artifact import LIMITS
from tests.runtime import fake_model
from tests.runtime.speculated import SPECULATIVE, always

PROMPT = 60
KNOWN = fake_model.VOCAB - 20  # the others make the fake model fail


@pytest.fixture(scope="module")
def executor(tmp_path_factory):
    limits = replace(fake_model.LIMITS, max_model_len=PROMPT + ANSWER)
    path = fake_model.write_fake(
        tmp_path_factory.mktemp("fake") / "fake.ingot", limits=limits, tokenizer=False
    )
    opened = CpuExecutor(Artifact.open(path), max_model_len=PROMPT + ANSWER, num_threads=1)
    yield opened
    opened.close()


def answer(params: SamplingParams, vocab_size: int) -> list[int]:
    """What steered requests give, by the processor itself."""
    (steer,) = params.logits_processors
    rows = [steer([0] * n, np.zeros(vocab_size, np.float32)) for n in range(params.max_tokens)]
    return [int(row.argmax()) for row in rows]


def test_drafts_are_accepted_where_a_text_repeats_itself_and_hardly_where_not(executor):
    """With no tokenizer, and drafts wherever there is something to guess."""
    runner = SpeculationRunner(executor, SPECULATIVE, 2)
    with always():
        repetitive, other = map(runner.run, texts(KNOWN, PROMPT, 1))
    for found in (repetitive, other):
        assert (found.tokens, len(found.plain), len(found.drafted)) == (ANSWER, 2, 2)
        assert all(turn.num_draft_tokens == 0 for turn in found.plain)
        assert all(turn.num_steps == ANSWER for turn in found.plain)
        assert all(turn.tokens_per_second > 0 for turn in found.plain + found.drafted)
        assert found.num_draft_tokens == sum(turn.num_draft_tokens for turn in found.drafted) > 0
    assert repetitive.acceptance_rate > 0.5 > 0.2 > other.acceptance_rate
    assert repetitive.tokens_per_step > 2 > 1.3 > other.tokens_per_step >= 1


def test_several_sequences_run_at_once(executor):
    several = next(texts(KNOWN, PROMPT, 3))
    with always():
        found = SpeculationRunner(executor, SPECULATIVE, 1).run(several)
    assert (several.name, found.tokens) == ("repetitive, 3 at once", 3 * ANSWER)
    assert found.tokens_per_step > 1 and found.plain[0].num_steps < 1.2 * ANSWER


def test_outputs_that_speculation_changes_are_an_error(executor, monkeypatch):
    """Every draft passes for what was drawn, in answers that the model gives by itself."""

    def is_right(chunk):
        return not chunk.sequence.finished and chunk.num_drawn <= len(chunk.draft)

    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, detokenize=False)
    own = BenchText("own", [([3, 1, 4], params)])
    runner = SpeculationRunner(executor, SPECULATIVE, 1)
    monkeypatch.setattr(Speculation, "drafts", lambda self, sequences, room: [[9, 9]])
    assert runner.run(own).num_draft_tokens > 40
    monkeypatch.setattr(drawing, "_is_right", is_right)
    with pytest.raises(InternalError, match="changed an output of own"):
        runner.run(own)


def test_requests_that_fail_are_no_measurement(executor):
    def breaks(generated, logits):
        raise ValueError("no logits today")

    params = replace(steered([1] * 9), logits_processors=[breaks])
    with pytest.raises(IngotError, match="no logits today"):
        SpeculationRunner(executor, SPECULATIVE, 1).run(BenchText("broken", [([1, 2], params)]))


def test_an_artifact_of_one_row_is_refused(tmp_path):
    limits = replace(fake_model.LIMITS, max_logit_rows=1)
    path = fake_model.write_fake(tmp_path / "one.ingot", limits=limits)
    opened = CpuExecutor(Artifact.open(path), max_model_len=64, num_threads=1)
    with pytest.raises(UsageError, match="the logits of one token"):
        SpeculationRunner(opened, SPECULATIVE, 1)
    opened.close()


@pytest.mark.parametrize("vocab_size", [1, 2, 50, 150_000])
@pytest.mark.parametrize("prompt_tokens", [1, 30, 512])
def test_texts_are_tokens_of_the_model_and_the_same_every_time(vocab_size, prompt_tokens):
    for one, again in zip(*(texts(vocab_size, prompt_tokens, 2) for _ in range(2)), strict=True):
        assert one.name == again.name and len(one.requests) == 2
        for (prompt, params), (same, _) in zip(one.requests, again.requests, strict=True):
            assert prompt == same and len(prompt) == prompt_tokens
            assert params.max_tokens == ANSWER
            assert {*prompt, *answer(params, vocab_size)} <= {*range(vocab_size)}


def test_an_answer_repeats_its_prompt_or_has_only_its_words():
    (repetitive,), (other,) = (text.requests for text in texts(1000, ANSWER, 1))
    shares = [
        np.mean(np.array(prompt) == answer(params, 1000)) for prompt, params in (repetitive, other)
    ]
    assert 0.85 < shares[0] < 1 and shares[1] < 0.2
    pairs = Counter(zip(other[0], other[0][1:], strict=False))
    assert max(pairs.values()) > 1, "what misleads"


def test_every_request_has_a_text_of_its_own():
    for text in texts(1000, 64, 3):
        assert len({tuple(prompt) for prompt, _ in text.requests}) == 3
        assert len({tuple(answer(params, 1000)) for _, params in text.requests}) == 3


def turn(rate: float, steps: int = 128, drafted: int = 0, accepted: int = 0) -> BenchTurn:
    return BenchTurn(
        tokens_per_second=rate,
        num_steps=steps,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
    )


def compared(**changed: object) -> SpeculationTurns:
    """Rounds of 2, 4 and 1.5 times as fast."""
    found = SpeculationTurns(
        text=BenchText("repetitive, 2 at once", [([1, 2, 3], steered([5] * 4))] * 2),
        tokens=256,
        plain=[turn(10), turn(5), turn(20)],
        drafted=[turn(20, 32, 60, 45), turn(20, 64, 60, 45), turn(30, 80, 40, 30)],
    )
    return replace(found, **changed)


def test_figures_are_medians_of_rounds_and_shares_of_all():
    found = compared()
    assert (found.ratio, found.plain_rate, found.drafted_rate) == (2, 10, 20)
    assert (found.num_draft_tokens, found.acceptance_rate) == (160, 0.75)
    assert found.tokens_per_step == 2
    assert compared(drafted=[turn(10)] * 3).acceptance_rate is None


def test_text_has_a_line_for_each_text():
    none = compared(text=BenchText("other", [([1], steered([5]))]), drafted=[turn(10)] * 3)
    lines = speculation_text(SPECULATIVE, [compared(), none]).splitlines()
    assert lines[0] == "speculation by ngram, guesses of at most 5 tokens"
    assert [re.split("  +", line.strip()) for line in lines[2:]] == [
        ["text", "tok/s without", "tok/s with", "gain", "drafted", "accepted", "tokens a step"],
        ["repetitive, 2 at once", "10.0", "20.0", "2.00 x", "160", "75 %", "2.00"],
        ["other", "10.0", "10.0", "1.00 x", "0", "-", "2.00"],
    ]


def test_an_object_has_every_turn():
    found = json.loads(json_text(speculation_object(SPECULATIVE, [compared()])))["speculation"]
    (text,) = found.pop("texts")
    assert found == {"method": "ngram", "num_speculative_tokens": 5}
    assert [t["tokens_per_second"] for t in text.pop("plain_turns")] == [10, 5, 20]
    assert text.pop("turns")[2] == {
        "tokens_per_second": 30, "num_steps": 80, "num_draft_tokens": 40, "num_accepted_tokens": 30,
    }  # fmt: skip
    assert text == {
        "name": "repetitive, 2 at once", "sequences": 2, "prompt_tokens": 3, "tokens": 256,
        "plain_tokens_per_second": 10, "tokens_per_second": 20, "ratio": 2,
        "num_draft_tokens": 160, "acceptance_rate": 0.75, "tokens_per_step": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("room", "context", "found"),
    [(4096, None, 512), (ANSWER + 1, None, 1), (300, None, 300 - ANSWER), (300, 9, 9)],
)
def test_prompts_are_as_long_as_the_artifact_allows(room, context, found):
    limits = replace(LIMITS, max_model_len=room)
    assert speculated_tokens(limits, asked(context=context)) == (found, ANSWER)


@pytest.mark.parametrize(
    ("room", "context", "fits"),
    [
        (300, 173, "at most --context 172"),
        (ANSWER, None, "compile it with a larger"),
        (64, 8, "larger"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(room, context, fits):
    with pytest.raises(UsageError, match="speculation after a context") as caught:
        speculated_tokens(replace(LIMITS, max_model_len=room), asked(context=context))
    assert f"--max-model-len {room}: " in caught.value.hint and fits in caught.value.hint


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--speculative", "eagle"], "--speculative is 'eagle'"),
        (["--num-speculative-tokens", "3"], "num_speculative_tokens is 3"),
        (["--speculative", "ngram", "--num-speculative-tokens", "65"], "in [1, 64]"),
    ],
)
def test_nonsense_is_refused_before_a_model_is_looked_for(capsys, given, said):
    assert main(["bench", "no such model", *given]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.thorough
def test_the_command_measures_it_beside_the_phases(shakespeare_artifact, capsys):
    given = ["--speculative", "ngram", "--num-speculative-tokens", "3", "--json"]
    assert main(["bench", str(shakespeare_artifact), *SMALL, *given]) == 0
    captured = capsys.readouterr()
    measured = json.loads(captured.out)
    assert captured.err.splitlines()[0] == "measuring speculation, repetitive"
    assert len(measured["phases"]) == 3
    assert measured["speculation"]["num_speculative_tokens"] == 3
    texts = measured["speculation"]["texts"]
    assert [(text["name"], text["sequences"], text["prompt_tokens"]) for text in texts] == [
        ("repetitive", 1, 8), ("other", 1, 8),
        ("repetitive, 3 at once", 3, 8), ("other, 3 at once", 3, 8),
    ]  # fmt: skip
    assert all(len(text["turns"]) == len(text["plain_turns"]) == 2 for text in texts)
