"""The registry from threads: made-up engines under stress, and real ones."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from ingot.errors import ArtifactError, EngineDeadError, UnknownModelError, UsageError
from ingot.serve.registry.blocking import BlockingRegistry, _Loop
from ingot.serve.registry.opening import IsolatedOpener, LocalOpener
from ingot.serve.settings import ModelSettings
from tests.runtime.fake_model import greedy
from tests.serve.jobs import GREEDY, LONG, job
from tests.serve.registry.fakes import FakeOpener, size_of

ONE_THREAD = ModelSettings(threads=1)


def texts(engine):
    return [progress.pieces[0].text for progress in engine.ask(job([1]))]


def test_calls_wait_for_their_ends_and_raise_what_went_wrong():
    with BlockingRegistry(FakeOpener()) as registry:
        registry.register("a", "one", aliases=["b"])
        with registry.lease("b") as engine:
            assert texts(engine) == ["one"] * 4
            assert engine.facts.artifact_id == "one" and engine.counters().num_running == 0
        registry.reload("a", "two")
        registry.alias("c", "a")
        registry.pin("a")
        with registry.lease("c") as engine:
            assert texts(engine) == ["two"] * 4
            stream = engine.ask(job([1]))
            next(stream)
            stream.close()
            assert engine.counters().num_running == 0
        registry.unload("a")
        (status,) = registry.status()
        assert (status.state, status.aliases, status.pinned) == ("unloaded", ["b", "c"], True)
        registry.remove("a")
        with pytest.raises(UnknownModelError):
            registry.load("a")
        with pytest.raises(UsageError, match="no name"):
            registry.register("?", "one")
        registry.register("bad", "bad")
        with pytest.raises(ArtifactError, match="damaged"):
            registry.load("bad")
    registry.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("ingot-registry")]


def test_what_nobody_waits_for_any_more_is_cancelled(monkeypatch):
    began, ended = threading.Event(), threading.Event()
    begin = asyncio.run_coroutine_threadsafe

    async def endless():
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupted(coroutine, loop):
        future = begin(coroutine, loop)

        def result():
            assert began.wait(60)
            raise KeyboardInterrupt

        monkeypatch.setattr(future, "result", result)
        return future

    loop = _Loop()
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.run(endless())
    monkeypatch.undo()
    assert ended.wait(60)
    loop.close()


def worker(registry, seed, count, names, seen):
    """Random requests, loads, unloads and reloads; every answer must be of the model asked for."""
    rng = random.Random(seed)
    for _ in range(count):
        name, what = rng.choice(names), rng.random()
        try:
            if what < 0.8:
                with registry.lease(name) as engine:
                    found = set(texts(engine))
                    assert len(found) == 1 and found.pop()[0] == name
                seen["answers"] += 1
            elif what < 0.87:
                registry.load(name)
            elif what < 0.94:
                registry.unload(name)
            else:
                registry.reload(name, f"{name}{rng.randrange(100)}:{rng.randrange(1, 3)}")
        except EngineDeadError:  # unloaded while it waited
            seen["unloaded"] += 1


def stress(count, num_threads=16):
    opener, seen, names = FakeOpener(), Counter(), "abcdefgh"
    with BlockingRegistry(opener, memory_bytes=6) as registry:
        for name in names:
            registry.register(name, f"{name}0:{size_of(f'{name}:2')}")
        with ThreadPoolExecutor(num_threads) as pool:
            ends = [
                pool.submit(worker, registry, seed, count, names, seen)
                for seed in range(num_threads)
            ]
            for end in ends:
                end.result(timeout=300)
        assert opener.most_bytes <= 6 and opener.num_opened > len(names)
        assert seen["answers"] > count and registry._registry._loader._memory.used <= 6
        assert all(status.num_leases == status.num_waiting == 0 for status in registry.status())
    assert opener.open_engines == []


def test_threads_get_answers_of_the_models_that_they_ask():
    stress(15)


@pytest.mark.slow
def test_threads_get_answers_of_the_models_that_they_ask_ten_thousand_times():
    stress(625)


@pytest.mark.thorough
def test_real_models_come_and_go_under_requests_from_threads(fake_artifact):
    """Models of this process under a budget that holds two of them."""
    with BlockingRegistry(LocalOpener()) as sizing:
        sizing.register("a", str(fake_artifact), ONE_THREAD)
        sizing.load("a")
        nbytes = sizing.status()[0].nbytes

    def ask(seed):
        rng = random.Random(seed)
        for _ in range(12):
            name, first = rng.choice("abcd"), rng.randrange(300)
            with registry.lease(name) as engine:
                (got,) = [
                    progress.pieces[0].token_ids
                    for progress in engine.ask(job([first, ord(name)], GREEDY, stream=False))
                ]
                assert got == greedy([first, ord(name)], 10)

    with BlockingRegistry(LocalOpener(), memory_bytes=2 * nbytes) as registry:
        for name in "abcd":
            registry.register(name, str(fake_artifact), ONE_THREAD)
        with ThreadPoolExecutor(8) as pool:
            for end in [pool.submit(ask, seed) for seed in range(8)]:
                end.result(timeout=300)


@pytest.mark.thorough
def test_a_reload_loses_no_request_of_an_engine_process(dangerous_artifact, fake_artifact):
    def ask():
        for first in range(6):
            with registry.lease("a") as engine:
                pieces = [p for progress in engine.ask(job([first], LONG)) for p in progress.pieces]
                assert [t for piece in pieces for t in piece.token_ids] == greedy([first], 90)

    with BlockingRegistry(IsolatedOpener()) as registry:
        registry.register("a", str(dangerous_artifact), ONE_THREAD)
        with ThreadPoolExecutor(4) as pool:
            ends = [pool.submit(ask) for _ in range(4)]
            for source in (fake_artifact, dangerous_artifact):
                registry.reload("a", str(source))
            for end in ends:
                end.result(timeout=120)
