"""Drafts change no bit of any output, whether they are right or wrong."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from ingot.errors import UsageError
from ingot.runtime import drawing
from ingot.runtime.config import EngineConfig
from ingot.runtime.devices.cpu import CpuExecutor
from ingot.runtime.engine import Engine
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from ingot.runtime.speculation import Speculation
from tests.runtime.fake_model import LIMITS, NAN_TOKEN, PAGE_BYTES, VOCAB, write_fake
from tests.runtime.speculated import SPECULATIVE, Truth, always, outcome, requests, run
from tests.support.core import core

MOST = 40  # tokens of a request
WAYS = {
    "room": {},
    "few pages": {"kv_cache_bytes": 14 * PAGE_BYTES},
    "chunks": {"config": replace(SPECULATIVE, chunk_tokens=3, max_num_seqs=3)},
    "overlap": {"config": replace(SPECULATIVE, overlap=True)},
    "no prefixes": {"config": replace(SPECULATIVE, prefix_cache=False)},
    "known logits": {"config": replace(SPECULATIVE, logits_cache_bytes=10**6, overlap=True)},
}
_plain: dict[object, list] = {}


def plain(path: Path, asked: list, **options) -> list:
    """What requests give without speculation."""
    key = path, len(asked), repr(asked[-1])
    if key not in _plain:
        _plain[key] = run(path, asked, **options)[0]
    return _plain[key]


def compare(path: Path, asked: list, wrong: float, vocab_size: int = VOCAB, **options) -> list[int]:
    """The requests whose outcome with drafts is not the one without."""
    options = {"max_model_len": MOST, "config": SPECULATIVE, **options}
    expected = plain(path, asked, max_model_len=options["max_model_len"])
    with patch.object(Speculation, "drafts", Truth(expected, wrong, vocab_size)):
        outputs, counters = run(path, asked, **options)
    assert counters.num_accepted_tokens > len(asked) / 2
    assert counters.num_draft_tokens > counters.num_accepted_tokens
    return [
        number
        for number, (output, one) in enumerate(zip(outputs, expected, strict=True))
        if outcome(output) != outcome(one)
    ]


def of_all_kinds(seed: int, count: int) -> list:
    return requests(seed, count, VOCAB - 20, MOST)


@pytest.mark.parametrize("way", core("room", "few pages", further=WAYS))
def test_requests_in_company_give_what_they_give_without_drafts(fake_artifact, way):
    assert compare(fake_artifact, of_all_kinds(0, 120), 0.3, **WAYS[way]) == []


@pytest.mark.cases(thorough=1)
@pytest.mark.thorough
@pytest.mark.parametrize("wrong", [0.1, 0.5])
def test_a_thousand_requests_in_company_give_what_they_give_without_drafts(fake_artifact, wrong):
    asked = of_all_kinds(1, 1000)
    assert compare(fake_artifact, asked, wrong, kv_cache_bytes=20 * PAGE_BYTES) == []


@pytest.mark.deterministic
@pytest.mark.parametrize("count", core(60, further=[1000]))
def test_kernels_give_drafts_the_bits_that_they_give_single_tokens(shakespeare_artifact, count):
    asked = requests(3, count, 2048, 64)
    few = {"config": replace(SPECULATIVE, max_num_seqs=8)}  # a full step leaves drafts no room
    assert compare(shakespeare_artifact, asked, 0.2, 2048, max_model_len=64, **few) == []


@pytest.mark.deterministic
@pytest.mark.parametrize("judge", ["always", "where it pays"])
def test_kernels_give_guesses_the_bits_that_they_give_single_tokens(shakespeare_artifact, judge):
    """Guesses of the real lookup, which find much in prompts that say everything twice."""
    asked = [(prompt * 2, *rest) for prompt, *rest in requests(5, 100, 2048, 64)]
    expected = plain(shakespeare_artifact, asked, max_model_len=256)
    few = replace(SPECULATIVE, max_num_seqs=8)
    with always() if judge == "always" else nullcontext():
        outputs, counters = run(shakespeare_artifact, asked, max_model_len=256, config=few)
    assert [outcome(each) for each in outputs] == [outcome(each) for each in expected]
    assert counters.num_draft_tokens > (50 if judge == "always" else -1)


def test_nothing_is_prepared_beside_a_draft(tmp_path):
    """A step that was prepared as if the draft were wrong would compute its tokens again."""
    path = write_fake(tmp_path / "circles.ingot", windows=(1,))
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, logprobs=0)

    def tokens(config):
        with LLM(path, config=config) as llm:
            engine = llm._engine
            sequence, other = engine.add([5], params), None
            for step in range(500):
                if sequence.finished:
                    break
                engine.step()
                if step % 6 == 0:
                    other = engine.add([step % 7 + 1], params)
                if step % 6 == 3 and other is not None:
                    engine.abort(other)
            return sequence.generated_ids, str(sequence.logprobs)

    expected = tokens(EngineConfig())
    with always(), patch.object(Speculation, "waits", False):
        assert tokens(replace(SPECULATIVE, overlap=True)) == expected


def test_drafts_are_counted_as_they_are_made(fake_artifact):
    """Each token was drawn in a step or was accepted; the drafts are those that were offered."""
    asked = [
        ([3, number], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, seed=number), 0)
        for number in range(12)
    ]
    expected, plain_counters = run(fake_artifact, asked, config=EngineConfig())
    truth, offered = Truth(expected, 0.3, VOCAB), []

    def drafts(sequences, room):
        found = truth(sequences, room)
        offered.extend(zip(sequences, found, strict=True))
        return found

    few = replace(SPECULATIVE, max_num_seqs=3)
    with patch.object(Speculation, "drafts", staticmethod(drafts)):
        outputs, counters = run(fake_artifact, asked, config=few)
    drawn = sum(len(o.outputs[0].token_ids) for o in outputs)
    assert drawn == 12 * 20 == plain_counters.num_generated_tokens
    in_vain = counters.num_draft_tokens - counters.num_accepted_tokens
    # What was accepted is not computed again, and the last token of all is not computed.
    assert counters.num_computed_tokens == plain_counters.num_computed_tokens + in_vain
    made = [draft for sequence, draft in offered if draft and sequence.num_generated]
    assert 0 < counters.num_drafts <= len(made)
    assert counters.num_accepted_tokens >= counters.num_drafts / 4


@pytest.mark.parametrize("window", core(1, further=[3, 6]))
def test_sequences_behind_a_window_are_drafted_by_what_followed_before(tmp_path, window):
    """The fake model goes in circles where it looks back at one token, so guesses come true."""
    path = write_fake(tmp_path / "circles.ingot", windows=(window,))
    asked = [
        (prompt, replace(params, temperature=0 if params.n == 1 else 0.1), priority)
        for prompt, params, priority in requests(2, 80, VOCAB - 20, 80)
    ]
    expected, _ = run(path, asked)
    with always():
        outputs, counters = run(path, asked, config=SPECULATIVE, kv_cache_bytes=40 * PAGE_BYTES)
    assert [outcome(each) for each in outputs] == [outcome(each) for each in expected]
    assert counters.num_draft_tokens > 50
    assert window > 1 or counters.acceptance_rate > 0.5


def test_grammars_hold_whether_drafts_keep_to_them_or_not(fake_artifact):
    forms = ({"regex": "[a-d]{2,12}"}, {"choice": ["the lazy dog", "the fox"]})
    asked = [
        ([3, 4, number], SamplingParams(
            structured_outputs=forms[number % 2], seed=number, max_tokens=14,
            logprobs=number % 3 or None, temperature=number % 4 / 2,
        ), 0)
        for number in range(24)
    ]  # fmt: skip
    expected, _ = run(fake_artifact, asked)
    with patch.object(Speculation, "drafts", Truth(expected, 0.3, VOCAB)):
        outputs, counters = run(fake_artifact, asked, config=SPECULATIVE)
    assert [outcome(each) for each in outputs] == [outcome(each) for each in expected]
    assert counters.num_accepted_tokens > 10


def test_a_request_that_fails_in_the_middle_of_a_draft_fails_alone(fake_artifact):
    """It ends with the tokens that it has without drafts, and the others go on."""

    def breaks(generated, logits):
        if len(generated) == 5:
            raise ValueError("five")
        return logits

    def ends(config):
        with LLM(fake_artifact, config=config) as llm:
            params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
            asked = [params, replace(params, logits_processors=[breaks]), params]
            prompts = ([1, 2], [3, 4], [NAN_TOKEN, 2])
            added = [llm._engine.add(p, each) for p, each in zip(prompts, asked, strict=True)]
            while llm._engine.has_unfinished:
                llm._engine.step()
            llm._engine.pages.check()
            assert llm._engine.pages.num_free == llm._engine.pages.num_pages
            return [(s.generated_ids, str(s.error), s.finish_reason) for s in added]

    expected = ends(EngineConfig())
    known = {(1, 2): expected[0][0], (3, 4): expected[1][0] + [7] * 9, (NAN_TOKEN, 2): []}

    def drafts(sequences, room):
        return [known[tuple(s.prompt_ids)][s.num_generated :][:3] for s in sequences]

    with patch.object(Speculation, "drafts", staticmethod(drafts)):
        assert ends(SPECULATIVE) == expected
    assert len(expected[1][0]) == 5 and "five" in expected[1][1]


def test_pieces_of_a_stream_are_those_of_its_text(tmp_path):
    path = write_fake(tmp_path / "circles.ingot", windows=(1,))
    params = SamplingParams(temperature=0, max_tokens=70, ignore_eos=True, logprobs=1)
    with LLM(path) as llm:
        expected = llm.generate([[5]], params)[0].outputs[0]
    with always(), LLM(path, config=SPECULATIVE) as llm:
        pieces = [*llm.stream([5], params)]
        counters = llm.counters()
    # What was accepted is not computed again.
    in_vain = counters.num_draft_tokens - counters.num_accepted_tokens
    assert counters.num_computed_tokens == 1 + 69 + in_vain
    assert counters.num_accepted_tokens > 20
    assert "".join(piece.text for piece in pieces) == expected.text
    assert [token for piece in pieces for token in piece.token_ids] == expected.token_ids


def test_pages_that_drafts_have_filled_are_found_by_the_next_request(tmp_path):
    path = write_fake(tmp_path / "circles.ingot", windows=(1,))

    def num_cached(config):
        found = []
        for length in range(20, 40):
            with LLM(path, config=config) as llm:
                params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
                tokens = llm.generate([[5]], params)[0].outputs[0].token_ids
                found.append(llm.generate([[5, *tokens, 1]], params)[0].num_cached_tokens)
        return found

    expected = num_cached(EngineConfig())
    with always():
        assert num_cached(SPECULATIVE) == expected
    assert len({*expected}) > 2


def test_drafts_keep_to_the_most_tokens_of_a_step(tmp_path):
    path = write_fake(tmp_path / "circles.ingot", windows=(1,))
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    with always(), LLM(path, config=replace(SPECULATIVE, max_num_batched_tokens=2)) as llm:
        llm.generate([[5]], params)
        counters = llm.counters()
    assert counters.num_accepted_tokens > 20
    assert counters.num_computed_tokens <= 2 * counters.num_steps


def test_new_sizes_of_guesses_hold_from_the_next_step_on(tmp_path):
    path = write_fake(tmp_path / "circles.ingot", windows=(1,))
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    with always(), LLM(path, config=SPECULATIVE) as llm:
        engine = llm._engine
        sequence = engine.add([5], params)
        for longest in (3, 9):
            engine.config = replace(SPECULATIVE, prompt_lookup_max=longest)
            for _ in range(3):
                engine.step()
            assert sequence.lookup.sizes == (2, longest)


def test_switching_speculation_on_and_off_changes_no_token(tmp_path):
    path = write_fake(tmp_path / "circles.ingot", windows=(1,))
    params, number = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True), []
    with LLM(path) as llm:
        expected = llm.generate([[5]], params)[0].outputs[0].token_ids
    with always(), LLM(path) as llm:
        engine = llm._engine
        sequence = engine.add([5], params)
        for step in range(1000):
            if sequence.finished:
                break
            on = step // 6 % 2 == 0
            engine.config = SPECULATIVE if on else EngineConfig()
            before = engine.counters().num_drafts
            engine.step()
            number.append((on, engine.counters().num_drafts - before))
    assert sequence.generated_ids == expected
    assert (True, 1) in number and (False, 0) in number and (False, 1) not in number


def test_drafts_that_are_taken_unseen_are_caught(fake_artifact, monkeypatch):
    """The negative control: every token of a draft passes for the one that was drawn."""

    def is_right(chunk):
        return not chunk.sequence.finished and chunk.num_drawn <= len(chunk.draft)

    monkeypatch.setattr(drawing, "_is_right", is_right)
    assert compare(fake_artifact, of_all_kinds(0, 120), 0.3) != []


def test_stop_strings_that_are_seen_a_draft_late_are_caught(fake_artifact, monkeypatch):
    """The negative control: what is drawn behind a stop string would count."""
    deliver = Engine.deliver

    def late(self, changed=()):
        if changed:
            self._undelivered += [s for s in changed if s not in self._undelivered]
        else:
            deliver(self)

    monkeypatch.setattr(Engine, "deliver", late)
    # Few requests show it where steps happen to wait for the host.
    rounds = [of_all_kinds(seed, 120) for seed in range(6)]
    assert any(compare(fake_artifact, asked, 0.3, **WAYS["overlap"]) for asked in rounds)


def test_speculation_is_refused_where_no_step_takes_drafts(fake_artifact, monkeypatch):
    """A device that runs ahead of the host; and its model can be opened again without."""
    monkeypatch.setattr(CpuExecutor, "takes_drafts", False)
    with pytest.raises(UsageError, match="takes no drafts") as caught:
        LLM(fake_artifact, config=SPECULATIVE)
    assert "device='cpu'" in caught.value.hint
    with LLM(fake_artifact) as llm:
        with pytest.raises(UsageError):
            llm.config = SPECULATIVE
        assert llm.config == EngineConfig()
        assert llm.generate([[1, 2]], SamplingParams(max_tokens=2))[0].finished


def test_speculation_is_refused_where_a_step_has_one_row(tmp_path):
    path = write_fake(tmp_path / "one.ingot", limits=replace(LIMITS, max_logit_rows=1))
    with pytest.raises(UsageError, match="the logits of one token") as caught:
        LLM(path, config=SPECULATIVE)
    assert "--max-num-seqs 2" in caught.value.hint


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("speculative", "eagle", "'ngram' or None"),
        ("speculative", True, "'ngram' or None"),
        ("num_speculative_tokens", 0, "in [1, 64]"),
        ("prompt_lookup_max", 65, "in [1, 64]"),
        ("prompt_lookup_min", 5, "not be larger"),
    ],
)
def test_switches_that_cannot_be_are_refused(field, value, wanted):
    with pytest.raises(UsageError, match=field) as caught:
        EngineConfig(**{"speculative": "ngram", field: value})
    assert wanted in caught.value.hint


@pytest.mark.parametrize(
    "field", ["num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"]
)
def test_sizes_of_guesses_are_refused_where_nothing_is_guessed(field):
    with pytest.raises(UsageError, match=f"{field} is 3, and nothing is guessed") as caught:
        EngineConfig(**{field: 3})
    assert "--speculative ngram" in caught.value.hint
