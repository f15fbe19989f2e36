"""Several completions, priorities, caches, switches and counters."""

from __future__ import annotations

import logging
import threading
from dataclasses import fields, replace

import numpy as np
import pytest

from ingot.errors import InternalError, QueueFullError, RequestError, UsageError
from ingot.runtime.config import EngineConfig
from ingot.runtime.llm import LLM
from ingot.runtime.page_table import PageTable
from ingot.runtime.params import SamplingParams
from tests.runtime.fake_model import NAN_TOKEN, PAGE_BYTES, greedy, logprobs
from tests.runtime.gate import Gate, is_idle

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)


def tokens_of(outputs):
    return [[c.token_ids for c in output.outputs] for output in outputs]


def several(n, **options):
    return SamplingParams(n=n, temperature=1.0, max_tokens=8, ignore_eos=True, **options)


@pytest.mark.cases(core=4)
@pytest.mark.parametrize("options", [{}, {"kv_cache_bytes": 26 * PAGE_BYTES}])
@pytest.mark.parametrize("config", [
    EngineConfig(), EngineConfig(prefix_cache=False), EngineConfig(overlap=True, chunk_tokens=3),
    EngineConfig(max_num_seqs=2), EngineConfig(logits_cache_bytes=10**6),
])  # fmt: skip
def test_several_completions_are_those_of_each_alone(fake_artifact, options, config):
    prompts = [[1, 2, 3] * 6, [4], [1, 2, 3] * 6]
    params = [several(5, seed=1), several(3, seed=2), several(7, seed=3)]
    with LLM(fake_artifact, config=EngineConfig(max_num_seqs=1)) as llm:
        expected = [
            tokens_of(llm.generate([p], s))[0] for p, s in zip(prompts, params, strict=True)
        ]
    assert all(len({*map(tuple, each)}) == len(each) for each in expected)
    with LLM(fake_artifact, config=config, **options) as llm:
        outputs = llm.generate(prompts, params)
        assert tokens_of(outputs) == expected
        assert tokens_of(llm.generate(prompts, params)) == expected
        assert [c.index for c in outputs[2].outputs] == list(range(7))
        assert llm._engine.pages.num_free == llm._engine.pages.num_pages
        llm._engine.pages.check()


def test_completions_share_the_pages_of_their_prompt(fake_artifact):
    with LLM(fake_artifact, config=EngineConfig(prefix_cache=False)) as llm:
        first = llm._engine.add([1] * 16, several(4))
        computed = []
        while first.siblings:
            llm._engine.step()
        computed.append(llm._engine.counters().num_computed_tokens)
        ids = [llm._engine.pages.page_ids(s.sequence_id)[:4] for s in llm._engine.scheduler.running]
        assert len(ids) == 4 and all(each == ids[0] for each in ids)
        assert computed == [16]


def test_a_stream_of_several_completions_names_them(llm):
    whole = llm.generate([[5]], several(3, seed=4))[0]
    parts = {0: [], 1: [], 2: []}
    for delta in llm.stream([5], several(3, seed=4)):
        parts[delta.index] += delta.token_ids
    assert parts == {c.index: c.token_ids for c in whole.outputs}


def test_aborting_a_request_ends_all_its_completions(llm):
    gate = Gate(at=6)
    stream = llm.stream([5], several(4, logits_processors=[gate]))
    stream.close()
    gate.open()
    assert is_idle(llm)
    assert [c.finish_reason for c in stream.output().outputs] == ["abort"] * 4


def test_every_completion_of_a_prompt_with_bad_logits_fails(llm):
    with pytest.raises(Exception, match="not finite"):
        llm.generate([[NAN_TOKEN], [1]], [several(3), GREEDY])
    assert is_idle(llm)
    assert tokens_of(llm.generate([[1]], GREEDY)) == [[greedy([1], 10)]]


def test_priorities_decide_who_waits(fake_artifact):
    with LLM(fake_artifact, config=EngineConfig(max_num_seqs=1)) as llm:
        order = []

        def note(prompt, generated, row):
            if not generated:
                order.append(prompt[0])
            return row

        params = replace(GREEDY, logits_processors=[note])
        outputs = llm.generate([[i] for i in range(6)], params, priority=[0, 2, 1, 0, -1, 2])
        assert order == [4, 0, 3, 2, 1, 5]
        assert tokens_of(outputs) == [[greedy([i], 10)] for i in range(6)]
        for bad in ([1], 1.5, [0] * 5 + ["a"], 10**9):
            with pytest.raises(RequestError, match="priorit"):
                llm.generate([[i] for i in range(6)], GREEDY, priority=bad)


def test_a_cached_prefix_is_not_computed_again(llm):
    prompt = list(range(50))
    expected = [[greedy(prompt, 10)]]
    first = llm.generate([prompt], GREEDY)
    before = llm.counters()
    second = llm.generate([prompt], GREEDY)
    after = llm.counters()
    assert tokens_of(first) == tokens_of(second) == expected
    assert (first[0].num_cached_tokens, second[0].num_cached_tokens) == (0, 48)
    assert second[0].metrics.num_cached_tokens == 48
    assert after.num_computed_tokens - before.num_computed_tokens == 2 + 9
    assert after.prefix_cache.num_hits == 48 and after.prefix_cache.num_queries == 100
    salted = {"prompt_token_ids": prompt, "cache_salt": "mine"}
    assert llm.generate([salted], GREEDY)[0].num_cached_tokens == 0
    assert llm.generate([salted], GREEDY)[0].num_cached_tokens == 48
    llm.config = EngineConfig(prefix_cache=False)
    assert llm.generate([prompt], GREEDY)[0].num_cached_tokens == 0
    llm.config = EngineConfig()
    assert llm.generate([prompt], GREEDY)[0].num_cached_tokens == 0
    assert llm.generate([prompt], GREEDY)[0].num_cached_tokens == 48
    with pytest.raises(RequestError, match="cache_salt"):
        llm.generate([{"prompt_token_ids": [1], "cache_salt": 5}], GREEDY)


def test_generated_tokens_are_a_prefix_for_the_next_turn(llm):
    prompt = list(range(10))
    reply = llm.generate([prompt], GREEDY)[0].outputs[0].token_ids
    assert llm.generate([[*prompt, *reply, 5]], GREEDY)[0].num_cached_tokens == 16


def test_a_repeated_prompt_needs_no_step_for_its_first_token(fake_artifact):
    params = SamplingParams(temperature=0, max_tokens=1)
    with LLM(fake_artifact, config=EngineConfig(logits_cache_bytes=10**6)) as llm:
        first = llm.generate([[1, 2, 3]], params)
        steps = llm.counters().num_steps
        second = llm.generate([[1, 2, 3]], params)
        assert llm.counters().num_steps == steps == 1
        assert tokens_of(first) == tokens_of(second) == [[greedy([1, 2, 3], 1)]]
        assert second[0].num_cached_tokens == 3 and second[0].metrics.ttft_seconds is not None
        assert tokens_of(llm.generate([[1, 2, 3]] * 40, GREEDY)) == [[greedy([1, 2, 3], 10)]] * 40
        assert llm.counters().logits_cache.num_hits == 41
        salted = {"prompt_token_ids": [1, 2, 3], "cache_salt": "mine"}
        assert llm.generate([salted], params)[0].num_cached_tokens == 0


def test_prompt_logprobs_are_those_of_the_model(fake_artifact):
    prompt = [(7 * i) % 300 for i in range(50)]
    params = replace(GREEDY, prompt_logprobs=2)
    for options in ({}, {"kv_cache_bytes": 26 * PAGE_BYTES}):
        with LLM(fake_artifact, **options) as llm:
            for _ in range(2):  # a cached prefix has no logits: it is computed again
                outputs = llm.generate([prompt, [9], prompt[:20]], [params, params, GREEDY])
                entries = outputs[0].prompt_logprobs
                assert entries[0] is None and len(entries) == 50
                for token, row, entry in zip(
                    prompt[1:], logprobs(prompt), entries[1:], strict=False
                ):
                    assert entry[token].logprob == pytest.approx(row[token], abs=1e-5)
                    assert set(np.argsort(-row)[:2].tolist()) <= set(entry)
                assert outputs[1].prompt_logprobs == [None]
                assert outputs[2].prompt_logprobs is None
                assert tokens_of(outputs)[0] == [greedy(prompt, 10)]


@pytest.mark.parametrize("values", [
    {"chunk_tokens": 0}, {"chunk_tokens": 1.5}, {"prefix_cache": 1}, {"prefix_cache": None},
    {"overlap": "yes"}, {"logits_cache_bytes": -1}, {"logits_cache_bytes": None},
    {"max_waiting": 0}, {"max_num_seqs": True}, {"max_num_batched_tokens": 2**63},
])  # fmt: skip
def test_a_bad_switch_is_refused_by_name(values):
    with pytest.raises(UsageError, match=f"{next(iter(values))} is .*\n.* must be"):
        EngineConfig(**values)


def test_a_configuration_is_frozen_and_replaced_as_a_whole(llm):
    with pytest.raises(AttributeError):
        llm.config.prefix_cache = False
    llm.config = replace(llm.config, chunk_tokens=2)
    assert llm.config.chunk_tokens == 2 and len(fields(llm.config)) == 13


def test_a_full_queue_refuses_all_prompts_of_a_call(fake_artifact):
    with LLM(fake_artifact, config=EngineConfig(max_waiting=3)) as llm:
        with pytest.raises(QueueFullError, match="4 more are too many"):
            llm.generate([[1]] * 4, GREEDY)
        assert is_idle(llm)
        assert len(llm.generate([[1]] * 3, GREEDY)) == 3
        with pytest.raises(QueueFullError):
            llm.generate([1], several(4))


def test_what_can_never_fit_is_refused_when_it_is_added(fake_artifact):
    with LLM(fake_artifact, max_model_len=96, kv_cache_bytes=24 * PAGE_BYTES) as llm:
        llm._engine._checks = replace(llm._engine._checks, pages=PageTable(10, 4))
        with pytest.raises(RequestError, match="needs 14 pages of the KV cache, which has 10"):
            llm.generate([[1] * 45], GREEDY)
        assert len(llm.generate([[1] * 31], GREEDY)) == 1


def test_counters_are_a_snapshot_and_reach_the_callback(fake_artifact):
    seen = []
    with LLM(fake_artifact, on_step=seen.append) as llm:
        llm.generate([[1], [2]], GREEDY)
        last = llm.counters()
    assert len(seen) == 10 and seen[-1].num_steps == last.num_steps == 10
    assert (last.num_finished, last.num_generated_tokens, last.num_computed_tokens) == (2, 20, 20)
    assert last.steps_by_size[:2] == (0, 10) and sum(last.steps_by_size) == 10  # of two tokens
    assert sum(seen[0].steps_by_size) < 3
    assert seen[0].num_running == 2 and last.num_running == last.num_waiting == 0
    assert last.step_seconds > last.kernel_seconds > 0
    with pytest.raises(AttributeError):
        last.num_steps = 0


def test_a_callback_that_raises_harms_nobody(fake_artifact, caplog):
    calls = []

    def raises(counters):
        calls.append(counters)
        raise ValueError("mine")

    with LLM(fake_artifact, on_step=raises) as llm, caplog.at_level(logging.ERROR):
        assert tokens_of(llm.generate([[1]], GREEDY)) == [[greedy([1], 10)]]
    assert len(calls) == 1 and "on_step raised" in caplog.text


def test_metrics_tell_the_times_in_order(llm):
    metrics = llm.generate([[1] * 30], GREEDY)[0].metrics
    assert 0 <= metrics.queue_seconds < metrics.ttft_seconds < metrics.total_seconds
    assert metrics.tpot_seconds * 9 == pytest.approx(metrics.total_seconds - metrics.ttft_seconds)
    assert (metrics.num_prompt_tokens, metrics.num_generated_tokens) == (30, 10)


def test_progress_is_shown_on_a_terminal_only(llm, monkeypatch, capsys):
    llm.generate([[1]], GREEDY)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    llm.generate([[1], [2]], GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""
    llm.generate([[1], [2]], GREEDY)
    captured = capsys.readouterr()
    assert "2/2 prompts, 20 tokens" in captured.err and captured.out == ""


@pytest.mark.parametrize("seed", range(3))
def test_stop_strings_end_at_the_same_token_with_overlap_and_without(fake_artifact, seed):
    outputs = []
    for overlap in (False, True):
        with LLM(fake_artifact, config=EngineConfig(overlap=overlap)) as llm:
            text = llm.generate([[7, seed]], replace(GREEDY, max_tokens=60))[0].outputs[0].text
            stops = [text[i : i + 2] for i in (3, 11, 25)]
            params = [replace(GREEDY, max_tokens=60, stop=[stop]) for stop in stops]
            done = llm.generate([[7, seed]] * 3, params)
            outputs.append([(o.outputs[0].text, o.outputs[0].token_ids) for o in done])
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("overlap", [False, True])
def test_prompt_logprobs_survive_a_preemption_while_their_step_runs(fake_artifact, overlap):
    """A prompt is scored chunk by chunk, and loses its pages to those that decode before it."""
    prompts = [[5], [6], [(3 * i) % 300 for i in range(60)], [(7 * i) % 300 for i in range(50)]]
    params = [
        replace(GREEDY, max_tokens=40),
        replace(GREEDY, max_tokens=40),
        *[replace(GREEDY, prompt_logprobs=2)] * 2,
    ]
    config = EngineConfig(overlap=overlap, chunk_tokens=2)
    with LLM(fake_artifact, kv_cache_bytes=26 * PAGE_BYTES, config=config) as llm:
        outputs = llm.generate(prompts, params)
    preempted = [o for o in outputs if o.prompt_logprobs and o.metrics.num_preemptions]
    assert preempted
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.outputs[0].token_ids == greedy(prompt, len(output.outputs[0].token_ids))
    for output in outputs[2:]:
        tokens, rows = output.prompt_token_ids, logprobs(output.prompt_token_ids)
        assert len(output.prompt_logprobs) == len(tokens)
        for token, row, entry in zip(tokens[1:], rows, output.prompt_logprobs[1:], strict=False):
            assert entry[token].logprob == pytest.approx(row[token], abs=1e-5)


def test_scored_prompts_of_a_model_that_is_not_finite_fail_alone(llm):
    scored = replace(GREEDY, prompt_logprobs=0)
    with pytest.raises(InternalError, match="not finite"):
        llm.generate([[NAN_TOKEN, 1, 2], [9, 8]], [scored, scored])
    assert (llm.counters().num_failed, llm.counters().num_finished) == (1, 1)
    with pytest.raises(InternalError, match="not finite"):
        llm.generate([[NAN_TOKEN, 1, 2]], several(3, prompt_logprobs=0))
    assert is_idle(llm)


def test_several_completions_of_a_scored_prompt_score_it_once(llm):
    (alone,) = llm.generate([[3, 1, 4, 1, 5]], SamplingParams(prompt_logprobs=1, max_tokens=1))
    (output,) = llm.generate([[3, 1, 4, 1, 5]], several(3, prompt_logprobs=1))
    assert output.prompt_logprobs == alone.prompt_logprobs
    assert [len(each.token_ids) for each in output.outputs] == [8] * 3
    assert is_idle(llm)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_stop_string_counts_from_exactly_the_min_tokens_th_token_on(fake_artifact, overlap):
    with LLM(fake_artifact, config=EngineConfig(overlap=overlap)) as llm:
        plain = replace(GREEDY, max_tokens=20)
        pieces = [delta.text for delta in llm.stream([7, 3], plain)]
        ends = [
            (place, piece)
            for place, piece in enumerate(pieces[:-1], 1)
            if piece and "".join(pieces).index(piece) == len("".join(pieces[: place - 1]))
        ]
        assert len(ends) > 3
        for place, piece in ends[1:]:
            for least, stops in ((place - 1, True), (place, True), (place + 1, False)):
                params = replace(plain, stop=[piece], min_tokens=least)
                out = llm.generate([[7, 3]], params)[0].outputs[0]
                if stops:
                    assert (len(out.token_ids), out.stop_reason) == (place, piece)
                else:
                    assert len(out.token_ids) > place


def test_a_stream_raises_the_error_of_one_completion_and_ends_the_others(llm):
    calls, told = [], threading.Event()

    def fails_once(generated, row):
        calls.append(1)
        if len(calls) == 5:
            raise ValueError("mine")
        assert len(calls) < 10 or told.wait(20)
        return row

    with pytest.raises(RequestError, match="mine"):
        list(llm.stream([1], several(2, logits_processors=[fails_once])))
    told.set()
    counters = llm.counters()
    assert (counters.num_failed, counters.num_aborted, counters.num_finished) == (1, 1, 0)
