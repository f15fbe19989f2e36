from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing

import numpy as np
import pytest

from ingot.errors import (
    EngineDeadError,
    InternalError,
    QueueFullError,
    RequestError,
)
from ingot.runtime.async_llm import AsyncLLM
from ingot.runtime.config import EngineConfig
from ingot.runtime.llm import LLM
from ingot.runtime.mailbox import Mailbox
from ingot.runtime.output import Logprob
from ingot.runtime.params import SamplingParams
from ingot.runtime.spelled_bytes import spelled_bytes
from ingot.serve import local
from ingot.serve.engine import Piece, Progress, joined
from ingot.serve.http.app import build_app
from ingot.serve.local import LocalEngine
from ingot.serve.progress import _scored, facts_of
from ingot.serve.settings import ModelSettings
from tests.runtime.fake_model import LIMITS, NAN_TOKEN, VOCAB, greedy
from tests.runtime.gate import halted, held, is_idle
from tests.serve.jobs import GREEDY, LONG, job, whole
from tests.support.asgi import called
from tests.support.fake_engine import FakeModels
from tests.support.until import until

MESSAGES = [{"role": "user", "content": "Who is there?"}]


def use(path, scenario, **options):
    """Runs `scenario(engine)` and checks that it leaves nothing behind."""

    async def main():
        model = AsyncLLM(path, **options)
        engine = LocalEngine(model)
        result = await asyncio.wait_for(scenario(engine), 60)
        assert is_idle(model) and not engine._mailboxes and not engine._feed._subscriptions
        await engine.close()
        await engine.close()
        return result

    return asyncio.run(main())


def test_facts_are_those_of_the_artifact(fake_artifact):
    async def scenario(engine):
        return engine.facts, (await engine.counters()).num_pages

    facts, num_pages = use(fake_artifact, scenario, max_model_len=64)
    assert facts.max_model_len == 64 and facts.vocab_size == VOCAB
    assert facts.num_pages == num_pages and facts.page_size == LIMITS.page_size
    assert facts.max_num_seqs == LIMITS.max_num_seqs
    other, _ = use(fake_artifact, scenario)
    assert other.artifact_id == facts.artifact_id and other.fingerprint != facts.fingerprint


@pytest.mark.parametrize("seats", [None, 2, 10**6])
def test_no_more_seats_are_told_than_there_are(fake_artifact, seats):
    with LLM(fake_artifact) as llm:
        facts = facts_of(llm, ModelSettings(seats=seats))
    assert facts.max_num_seqs == min(seats or LIMITS.max_num_seqs, LIMITS.max_num_seqs)


def test_many_jobs_at_once_get_what_each_gets_alone(fake_artifact):
    prompts = [[i, i + 1, 7] for i in range(20)]

    async def scenario(engine):
        return await asyncio.gather(*(whole(engine, job(p)) for p in prompts))

    for prompt, progress in zip(prompts, use(fake_artifact, scenario), strict=True):
        (piece,) = progress.pieces
        assert piece.token_ids == greedy(prompt, 10) and piece.finish_reason == "length"
        assert progress.finished and progress.metrics.num_generated_tokens == 10


@pytest.mark.parametrize("overlap", [False, True])
def test_progress_joined_is_what_a_model_gives(fake_artifact, overlap):
    fields = {"n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 40}
    fields |= {"logprobs": 2, "prompt_logprobs": 1, "stop": ["zz", "extra"]}
    prompt = [3, 1, 4, 1, 5]
    with LLM(fake_artifact) as llm:
        (wanted,) = llm.generate([prompt], SamplingParams(**fields))

    config = EngineConfig(overlap=overlap)
    found = use(fake_artifact, lambda engine: whole(engine, job(prompt, fields)), config=config)
    assert found.finished and found.num_cached_tokens == wanted.num_cached_tokens
    for piece, output in zip(
        sorted(found.pieces, key=lambda piece: piece.index), wanted.outputs, strict=True
    ):
        assert (piece.index, piece.text) == (output.index, output.text)
        assert piece.token_ids == output.token_ids
        assert (piece.finish_reason, piece.stop_reason) == (
            output.finish_reason,
            output.stop_reason,
        )
        for token, scores, of_token in zip(
            piece.token_ids, piece.logprobs, output.logprobs, strict=True
        ):
            assert scores[0][0] == token
            assert {s[0]: s[1:] for s in scores} == {
                t: (lp.logprob, lp.rank, lp.decoded_token) for t, lp in of_token.items()
            }
    assert found.prompt_logprobs[0] is None
    for token, scores in zip(prompt[1:], found.prompt_logprobs[1:], strict=True):
        assert scores[0][0] == token and scores[0][3] is not None


def test_cached_tokens_are_told_with_the_first_step_alone(fake_artifact, monkeypatch):
    prompt, parts = [*range(3 * LIMITS.page_size)], []
    monkeypatch.setattr(local, "joined", lambda told: parts.extend(told) or joined(told))

    async def scenario(engine):
        await whole(engine, job(prompt))
        parts.clear()
        await whole(engine, job(prompt, LONG))

    use(fake_artifact, scenario)
    first, *others = (part.num_cached_tokens for part in parts)
    assert first and others and not any(others)


def test_of_the_tokens_at_a_place_the_drawn_one_is_told_first():
    three, five = Logprob(-1.0, 1, "c"), Logprob(-2.0, 2, "e")
    assert _scored({3: three, 5: five}, 5) == [(5, -2.0, 2, "e"), (3, -1.0, 1, "c")]


@pytest.mark.parametrize("n", [1, 3])
def test_a_served_request_is_checked_for_its_model_once(fake_artifact, monkeypatch, n):
    """From the body of the client to the last of its tokens."""
    checked, for_model = [], SamplingParams.for_model

    def counted(params, *given):
        checked.append(params)
        return for_model(params, *given)

    monkeypatch.setattr(SamplingParams, "for_model", counted)

    async def scenario(engine):
        app = build_app(FakeModels(bard=engine))
        fields = {"prompt": [5, 6], "n": n, "temperature": 1.0, "max_tokens": 4}
        return await called(app, "POST", "/v1/completions", fields)

    answer = use(fake_artifact, scenario)
    assert answer.status == 200 and len(answer.json()["choices"]) == n
    assert len(checked) == 1


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_greedy_choices_of_a_request_are_equal(shakespeare_artifact, path):
    asked = {"prompt": "To be"} if "chat" not in path else {"messages": MESSAGES}

    async def scenario(engine):
        app = build_app(FakeModels(bard=engine))
        fields = {**asked, "temperature": 0, "max_tokens": 4}
        several = {"n": 3} | ({} if "chat" in path else {"best_of": 3})
        return [(await called(app, "POST", path, {**fields, **each})) for each in ({}, several)]

    one, three = use(shakespeare_artifact, scenario)
    assert three.status == 200, three.body
    (alone,) = one.json()["choices"]
    assert three.json()["choices"] == [{**alone, "index": index} for index in range(3)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_fills_the_context_is_scored_without_a_new_token(fake_artifact, stream):
    prompt = [5 + i % 30 for i in range(32)]
    fields = {"max_tokens": 0, "prompt_logprobs": 0, "logprobs": 0, "n": 2}

    async def scenario(engine):
        alone = await whole(engine, job(prompt, fields, stream=stream))
        again = await whole(engine, job(prompt, fields, stream=stream))  # its pages are known
        with pytest.raises(RequestError, match="At most 31 fit"):
            await whole(engine, job(prompt, {**fields, "max_tokens": 1}))
        with pytest.raises(RequestError, match="At most 32 fit"):
            await whole(engine, job([*prompt, 5], fields))
        return alone, again

    for found in use(fake_artifact, scenario, max_model_len=32):
        assert found.finished and len(found.prompt_logprobs) == 32
        ends = [(p.index, p.text, p.token_ids, p.logprobs, p.finish_reason) for p in found.pieces]
        assert ends == [(index, "", [], [], "length") for index in range(2)]
        assert found.metrics.num_generated_tokens == 0 and found.metrics.total_seconds > 0


def test_characters_of_several_bytes_are_scored_where_they_begin(shakespeare_artifact):
    """Against the logits of the model, in the bundled tokenizer of bytes."""
    text = "naïve 日本 😀 fox"

    async def scenario(engine):
        app = build_app(FakeModels(bard=engine))
        fields = {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 1}
        return (await called(app, "POST", "/v1/completions", fields)).json()

    answer = use(shakespeare_artifact, scenario)
    (choice,), usage = answer["choices"], answer["usage"]
    assert (choice["text"], usage["completion_tokens"]) == (text, 0)
    with LLM(shakespeare_artifact) as llm:
        ids = llm.get_tokenizer().encode(text)
        logits = llm.logits(ids).astype(np.float64)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    found = choice["logprobs"]
    assert usage["total_tokens"] == len(ids) == len(found["tokens"])
    assert found["token_logprobs"][0] is None
    expected = [logits[i, token] for i, token in enumerate(ids[1:])]
    assert found["token_logprobs"][1:] == pytest.approx(expected, abs=1e-4)
    begun = b""
    for token, offset in zip(ids, found["text_offset"], strict=True):
        # Tokens inside a character begin where it does.
        assert offset == len(begun.decode(errors="ignore"))
        begun += spelled_bytes(llm.get_tokenizer().token(token))
    assert begun.decode() == text


def test_without_stream_all_comes_as_one(fake_artifact):
    async def scenario(engine):
        fields = {**GREEDY, "n": 2, "temperature": 1.0, "seed": 3, "logprobs": 1}
        jobs = (job([5, 6], fields), job([5, 6], fields, stream=False))
        return [[p async for p in engine.ask(each)] for each in jobs]

    streamed, at_once = use(fake_artifact, scenario)
    assert len(at_once) == 1
    assert at_once[0].pieces == sorted(joined(streamed).pieces, key=lambda p: p.index)


def test_without_stream_an_error_is_still_told(fake_artifact):
    async def scenario(engine):
        with pytest.raises(InternalError, match="not finite"):
            await whole(engine, job([NAN_TOKEN], stream=False))

    use(fake_artifact, scenario)


def test_a_step_crosses_to_the_event_loop_once_for_all_jobs(fake_artifact):
    async def scenario(engine):
        calls, deliver = [], engine._deliver
        engine._deliver = lambda letters: (calls.append(len(letters)), deliver(letters))
        with held(engine._model) as inbox:  # no step begins before all are there
            jobs = asyncio.gather(*(whole(engine, job([i], LONG)) for i in range(6)))
            await until(lambda: inbox.qsize() == 6)
        await jobs
        return calls

    calls = use(fake_artifact, scenario, config=EngineConfig(overlap=False))
    assert max(calls) == 6 and len(calls) < 6 * 90


def test_closing_the_iterator_or_cancelling_its_reader_aborts_the_job(fake_artifact):
    async def scenario(engine):
        async with aclosing(engine.ask(job([1], LONG))) as progress:
            await anext(progress)
        with held(engine._model) as inbox:
            task = asyncio.create_task(whole(engine, job([2], LONG)))
            await until(inbox.qsize)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        result = await whole(engine, job([3]))
        return result, await engine.counters()

    result, counters = use(fake_artifact, scenario)
    assert result.pieces[0].token_ids == greedy([3], 10)
    assert counters.num_running == counters.num_waiting == 0
    assert counters.num_finished + counters.num_aborted >= 2


def test_a_reader_that_left_before_its_job_was_added_leaves_nothing(fake_artifact):
    async def scenario(engine):
        adding, added, go_on = asyncio.Event(), asyncio.Event(), threading.Event()
        loop, add = asyncio.get_running_loop(), engine._add

        def slow(*arguments):
            loop.call_soon_threadsafe(adding.set)
            go_on.wait()
            add(*arguments)
            loop.call_soon_threadsafe(added.set)

        engine._add = slow
        task = asyncio.create_task(whole(engine, job([1], LONG)))
        await adding.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await added.wait()
        engine._add = add
        await whole(engine, job([3], LONG))
        return await engine.counters()

    assert use(fake_artifact, scenario).num_running == 0


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (job([]), "empty"),
        (job([VOCAB]), f"token {VOCAB}"),
        (job([1], {"temperature": -1}), "temperature"),
        (job([1], {"no_such": 1}), "no_such"),
        (job([1], {"logits_processors": [max]}), "logits_processors"),
        (job([1], {"output_kind": 1}), "output_kind"),
        (job([1], priority=10**6), "priority"),
    ],
)
def test_jobs_that_cannot_be_served_are_refused(fake_artifact, asked, text):
    async def scenario(engine):
        with pytest.raises(RequestError, match=text):
            await whole(engine, asked)

    use(fake_artifact, scenario)


def test_one_failing_job_leaves_the_others(fake_artifact):
    async def scenario(engine):
        with held(engine._model) as inbox:
            bad = asyncio.create_task(whole(engine, job([NAN_TOKEN])))  # the first of its step
            await until(lambda: inbox.qsize() == 1)
            good = asyncio.create_task(whole(engine, job([3], LONG)))
            await until(lambda: inbox.qsize() == 2)
        with pytest.raises(InternalError, match="not finite"):
            await bad
        return await good

    assert use(fake_artifact, scenario).pieces[0].token_ids == greedy([3], 90)


def test_a_full_queue_is_a_typed_error(fake_artifact):
    async def scenario(engine):
        with held(engine._model) as inbox:
            jobs = (whole(engine, job([i], LONG)) for i in range(30))
            answers = asyncio.gather(*jobs, return_exceptions=True)
            await until(lambda: inbox.qsize() == 30)
        return await answers

    found = use(fake_artifact, scenario, config=EngineConfig(max_waiting=1, max_num_seqs=1))
    assert sum(isinstance(each, QueueFullError) for each in found) == 29
    for i, each in enumerate(found):
        if not isinstance(each, QueueFullError):
            assert each.pieces[0].token_ids == greedy([i], 90)


def test_only_jobs_of_one_salt_share_prefixes(fake_artifact):
    prompt = [*range(40)]

    async def scenario(engine):
        salts = ("a", "b", "a")
        return [(await whole(engine, job(prompt, salt=s))).num_cached_tokens for s in salts]

    first, other, again = use(fake_artifact, scenario)
    assert first == other == 0 and again > 0


def test_closing_ends_jobs_that_run_and_refuses_later_ones(fake_artifact):
    async def main():
        engine = LocalEngine(AsyncLLM(fake_artifact))
        with halted(engine._model, steps=3) as halt:
            stream = engine.ask(job([1], LONG))
            await anext(stream)
            await until(halt.reached.is_set)
            closing = asyncio.create_task(engine.close())
            await until(halt.inbox.qsize)  # the word to end
        await closing
        with pytest.raises(EngineDeadError, match="closed"):
            async for _ in stream:
                pass
        with pytest.raises(EngineDeadError, match="closed"):
            await whole(engine, job([1]))
        with pytest.raises(EngineDeadError, match="closed"):
            await engine.counters()

    asyncio.run(main())


def test_what_a_slow_reader_has_missed_comes_as_one():
    async def main():
        mailbox = Mailbox(asyncio.get_running_loop())
        score = [(7, -1.0, 1, "x")]
        mailbox.put(Progress([Piece(0, "a", [1], [score])], num_cached_tokens=4))
        mailbox.put(Progress([Piece(1, "b", [2], [score])]))
        mailbox.put(Progress([Piece(0, "c", [3], [score], "stop", "c")]))
        got = joined(await mailbox.get())
        mailbox.put(Progress([Piece(1, "d", [4])], finished=True))
        mailbox.put(EngineDeadError("over"))
        last = joined(await mailbox.get())
        with pytest.raises(EngineDeadError, match="over"):
            joined(await mailbox.get())
        return got, last

    got, last = asyncio.run(main())
    score = [(7, -1.0, 1, "x")]
    assert got == Progress(
        [Piece(0, "ac", [1, 3], [score, score], "stop", "c"), Piece(1, "b", [2], [score])],
        num_cached_tokens=4,
    )
    assert last.finished
