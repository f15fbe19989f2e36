"""Engines in processes of their own, over the fake model."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from ingot.errors import (
    ArtifactError,
    EngineDeadError,
    InternalError,
    PoisonedRequestError,
    RequestError,
    VerificationError,
)
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from ingot.serve.isolated.client import IsolatedEngine
from ingot.serve.isolated.supervisor import Patience
from ingot.serve.local import LocalEngine
from ingot.serve.settings import ModelSettings
from tests.runtime.fake_model import (
    CRASH_TOKEN,
    HANG_TOKEN,
    NAN_TOKEN,
    WEIGHTS,
    golden,
    greedy,
    write_fake,
)
from tests.serve.jobs import ENDLESS, GREEDY, LONG, has_ended, job, run, tokens, whole
from tests.support.until import until

SETTINGS = ModelSettings(threads=1)


@asynccontextmanager
async def opened(path, patience=None, events=None, settings=SETTINGS):
    """An engine, and at the end no process of it."""
    told = events or asyncio.Queue()
    engine = await IsolatedEngine.open(
        "m", str(path), settings, patience, lambda *event: told.put_nowait(event)
    )
    process = await engine.supervisor.process()
    try:
        yield engine
    finally:
        await engine.close()
        await engine.close()
        assert has_ended(process.pid)


async def pid_of(engine):
    return (await engine.supervisor.process()).pid


async def why(events, wanted):
    """Waits until a state is told; why it is."""
    while (event := await events.get())[0] != wanted:
        pass
    return event[1]


def test_it_gives_what_the_model_gives(fake_artifact):
    fields = {"n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 40}
    fields |= {"logprobs": 2, "prompt_logprobs": 1, "stop": ["zz", "extra"], "logit_bias": {3: 1.0}}
    prompts = [[i, i + 1, 7] for i in range(12)]
    with LLM(fake_artifact) as llm:
        wanted = llm.generate(prompts, SamplingParams(**fields))
        facts = LocalEngine(llm, SETTINGS).facts

    async def main():
        async with opened(fake_artifact) as engine:
            assert engine.facts == facts
            assert engine.tokenizer.decode(engine.tokenizer.encode("the dog")) == "the dog"
            jobs = (whole(engine, job(p, fields, stream=i % 2 == 0)) for i, p in enumerate(prompts))
            found = await asyncio.gather(*jobs)
            assert (await engine.counters()).num_finished == 36
            maps = Path(f"/proc/{await pid_of(engine)}/maps").read_text()
            assert "libtorch" not in maps and "numpy" in maps
            return found

    for progress, output in zip(run(main), wanted, strict=True):
        assert progress.metrics.num_generated_tokens == output.metrics.num_generated_tokens
        assert len(progress.prompt_logprobs) == 3
        for piece, completion in zip(
            sorted(progress.pieces, key=lambda p: p.index), output.outputs, strict=True
        ):
            assert (piece.text, piece.token_ids) == (completion.text, completion.token_ids)
            assert piece.finish_reason == completion.finish_reason
            assert [scores[0][0] for scores in piece.logprobs] == piece.token_ids
            assert [len(s) for s in piece.logprobs] == [len(lp) for lp in completion.logprobs]


@pytest.mark.thorough
def test_jobs_that_cannot_be_served_fail_alone(fake_artifact):
    async def main():
        async with opened(fake_artifact) as engine:
            good = asyncio.create_task(tokens(engine, job([3], LONG)))
            for bad, text in [
                (job([]), "empty"),
                (job([1], {"temperature": -1}), "temperature"),
                (job([1], {"logits_processors": []}), "logits_processors"),
                (job([1], {"stop": ["\ud800"]}), "cannot be handed on"),
                (job([1 << 70]), "cannot be handed on"),
                (job([1], {"stop": [print]}), "cannot be handed on"),
            ]:
                with pytest.raises(RequestError, match=text):
                    await whole(engine, bad)
            assert await good == greedy([3], 90)
            with pytest.raises(InternalError, match="not finite"):  # where it is the step's first
                await whole(engine, job([NAN_TOKEN]))
            assert await tokens(engine, job([3])) == greedy([3], 10)

    run(main)


def test_closing_an_iterator_or_cancelling_its_reader_frees_its_pages(dangerous_artifact):
    async def main():
        async with opened(dangerous_artifact) as engine:
            async with aclosing(engine.ask(job([1], ENDLESS))) as progress:
                await anext(progress)
            task = asyncio.create_task(whole(engine, job([2], ENDLESS)))
            while not (await engine.counters()).num_running:
                pass
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            counters = await engine.counters()
            assert counters.num_running == counters.num_waiting == 0
            assert counters.num_free_pages == counters.num_pages
            assert counters.num_aborted == 2

    run(main)


def test_a_killed_engine_takes_its_jobs_and_nothing_else_and_answers_again(dangerous_artifact):
    async def main():
        events = asyncio.Queue()
        async with (
            opened(dangerous_artifact, events=events) as engine,
            opened(dangerous_artifact) as other,
        ):
            beside = asyncio.create_task(tokens(other, job([9], LONG)))
            jobs = [asyncio.create_task(whole(engine, job([i], ENDLESS))) for i in range(8)]
            while not (await engine.counters()).num_generated_tokens:
                pass
            os.kill(await pid_of(engine), signal.SIGKILL)
            for failed in await asyncio.gather(*jobs, return_exceptions=True):
                assert isinstance(failed, EngineDeadError)
                assert failed.found == "the engine of m was killed by SIGKILL"
            assert await tokens(engine, job([5])) == greedy([5], 10)
            assert await beside == greedy([9], 90)
            states = [events.get_nowait()[0] for _ in range(events.qsize())]
            assert states == ["loaded", "loading", "loaded"]

    run(main)


def test_a_request_that_crashed_engines_twice_is_refused_and_those_beside_it_are_not(
    dangerous_artifact,
):
    crash = job([CRASH_TOKEN], fingerprint=b"crash")

    async def main():
        async with opened(dangerous_artifact, Patience(most_deaths=9)) as engine:
            for _ in range(2):
                beside = asyncio.create_task(whole(engine, job([1], ENDLESS, fingerprint=b"1")))
                while not (await engine.counters()).num_running:
                    pass
                with pytest.raises(EngineDeadError, match="SIGSEGV"):
                    await whole(engine, crash)
                with pytest.raises(EngineDeadError, match="SIGSEGV"):
                    await beside
                assert await tokens(engine, job([1], fingerprint=b"1")) == greedy([1], 10)
            with pytest.raises(PoisonedRequestError, match="died twice"):
                await whole(engine, crash)
            assert await tokens(engine, job([2])) == greedy([2], 10)

    run(main)


@pytest.mark.thorough
def test_an_engine_whose_step_hangs_is_killed_and_started_again(dangerous_artifact):
    async def main():
        patience = Patience(watchdog_seconds=0.4, beat_seconds=0.1)
        async with opened(dangerous_artifact, patience) as engine:
            before = await pid_of(engine)
            with pytest.raises(EngineDeadError, match=r"made no step for 0\.4 s"):
                await whole(engine, job([HANG_TOKEN]))
            engine.supervisor._patience = Patience()  # the next engine may be slow to answer
            assert await tokens(engine, job([5])) == greedy([5], 10)
            assert await pid_of(engine) != before and has_ended(before)

    run(main)


@pytest.mark.thorough
def test_an_engine_that_was_halted_goes_on_where_it_was(dangerous_artifact):
    async def main():
        async with opened(dangerous_artifact, Patience(beat_seconds=0.02)) as engine:
            pid = await pid_of(engine)
            going = asyncio.create_task(tokens(engine, job([5], LONG)))
            while not (await engine.counters()).num_generated_tokens:
                pass
            os.kill(pid, signal.SIGSTOP)
            await until(lambda: engine.supervisor.silent_seconds > 0.1)
            os.kill(pid, signal.SIGCONT)
            assert await going == greedy([5], 90)
            assert await pid_of(engine) == pid

    run(main)


@pytest.mark.thorough
def test_an_engine_that_dies_too_often_is_given_up(fake_artifact):
    async def main():
        events = asyncio.Queue()
        async with opened(fake_artifact, Patience(most_deaths=2), events) as engine:
            await why(events, "loaded")
            os.kill(await pid_of(engine), signal.SIGKILL)
            await why(events, "loaded")
            os.kill(await pid_of(engine), signal.SIGKILL)
            assert "died 2 times" in await why(events, "failed")
            with pytest.raises(EngineDeadError, match="the model m has failed"):
                await whole(engine, job([1]))
            with pytest.raises(EngineDeadError, match="the model m has failed"):
                await engine.counters()

    run(main)


@pytest.mark.thorough
@pytest.mark.parametrize("side", ["front", "engine"])
def test_bytes_that_are_no_message_end_the_engine_and_no_token_goes_astray(
    dangerous_artifact, side
):
    async def main():
        async with opened(dangerous_artifact) as engine:
            process = await engine.supervisor.process()
            jobs = [asyncio.create_task(whole(engine, job([i], ENDLESS))) for i in range(3)]
            while not (await engine.counters()).num_generated_tokens:
                pass
            if side == "front":
                process.data_received(b"\0" * 64)
                end = "sent what is no message"
            else:
                process._transport.write(b"\0" * 64)
                end = "ended with exit code 1"
            for failed in await asyncio.gather(*jobs, return_exceptions=True):
                assert isinstance(failed, EngineDeadError) and end in failed.found
            assert await tokens(engine, job([5])) == greedy([5], 10)
            assert has_ended(process.pid)

    run(main)


@pytest.mark.thorough
def test_an_artifact_that_was_damaged_meanwhile_fails_when_it_is_opened_again(
    dangerous_artifact, tmp_path
):
    async def main():
        path = Path(shutil.copytree(dangerous_artifact, tmp_path / "a.ingot"))
        events = asyncio.Queue()
        async with opened(path, events=events) as engine:
            os.truncate(path / WEIGHTS, 70)
            os.kill(await pid_of(engine), signal.SIGKILL)
            reason = await why(events, "damaged")
            assert "cannot be started again" in reason and WEIGHTS in reason
            with pytest.raises(EngineDeadError) as refused:
                await whole(engine, job([1]))
            assert str(path) not in str(refused.value)

    run(main)


@pytest.mark.thorough
def test_a_deleted_artifact_goes_on_and_a_replaced_one_is_not_taken_for_it(fake_artifact, tmp_path):
    async def main():
        path = Path(shutil.copytree(fake_artifact, tmp_path / "a.ingot"))
        events = asyncio.Queue()
        async with opened(path, events=events) as engine:
            shutil.rmtree(path)
            assert await tokens(engine, job([5])) == greedy([5], 10)
            write_fake(path, tokenizer=False)
            os.kill(await pid_of(engine), signal.SIGKILL)
            assert "has changed" in await why(events, "damaged")

    run(main)


@pytest.mark.thorough
def test_models_that_cannot_be_opened_say_why_and_leave_no_process(fake_artifact, tmp_path):
    wrong = json.loads(golden())
    wrong["prompts"][1]["positions"][2]["top"][0][1] += 1.0
    files = {"golden/golden.json": json.dumps(wrong).encode()}
    other = write_fake(tmp_path / "b.ingot", files=files)

    async def main():
        for path, error, text in [
            (tmp_path / "none", ArtifactError, "does not exist"),
            (other, VerificationError, "golden prompt is not reproduced"),
        ]:
            with pytest.raises(error, match=text):
                await IsolatedEngine.open("m", str(path), SETTINGS)

    run(main)


@pytest.mark.thorough
@pytest.mark.parametrize("busy", [False, True])
def test_an_engine_ends_with_its_front(dangerous_artifact, busy):
    code = f"""
import asyncio
from ingot.serve.isolated.client import IsolatedEngine
from tests.serve.jobs import job, whole
from tests.serve.isolated.test_isolated_engine import SETTINGS

async def main():
    engine = await IsolatedEngine.open("m", {str(dangerous_artifact)!r}, SETTINGS)
    print((await engine.supervisor.process()).pid, flush=True)
    await (whole(engine, job([{HANG_TOKEN}])) if {busy} else asyncio.Event().wait())

asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    ) as front:
        pid = int(front.stdout.readline())
        os.kill(pid, 0)
        front.kill()
    assert has_ended(pid)


@pytest.mark.thorough
def test_jobs_of_an_engine_that_is_closed_fail(dangerous_artifact):
    async def main():
        async with opened(dangerous_artifact) as engine:
            stream = engine.ask(job([1], ENDLESS))
            await anext(stream)
            await engine.close()
            with pytest.raises(EngineDeadError, match="closed"):
                async for _ in stream:
                    pass
            with pytest.raises(EngineDeadError, match="closed"):
                await whole(engine, job([1], GREEDY))

    run(main)
