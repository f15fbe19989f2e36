"""Operations of a registry that meet: begun in the same turn of the loop, or one in the other."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest

from ingot.errors import DrainingError, EngineDeadError, IngotError
from ingot.serve.registry import opening
from ingot.serve.registry.opening import Need
from ingot.serve.settings import ModelSettings
from tests.serve.registry.fakes import answer, settle
from tests.serve.registry.test_registry import run, states
from tests.support.until import until


def test_a_load_that_is_ended_before_it_begins_tells_those_who_wait_for_it():
    async def scenario(registry, opener):
        registry.register("a", "one")
        waiting = [
            asyncio.create_task(each) for each in (answer(registry, "a"), registry.load("a"))
        ]
        unloading = asyncio.create_task(registry.unload("a"))
        for task in waiting:
            with pytest.raises(EngineDeadError):
                await task
        await unloading
        assert states(registry) == {"a": "unloaded"} and await answer(registry, "a") == "one"

    run(scenario)


def test_a_model_has_one_timer_however_often_it_becomes_idle():
    async def scenario(registry, opener):
        registry.register("a", "one", ModelSettings(keep_alive=1000))
        await registry.load("a")
        instance = registry._entries["a"].instance
        first = instance.expiry
        registry.pin("a", False)
        assert first.cancelled() and not instance.expiry.cancelled()
        async with registry.lease("a"):
            assert instance.expiry is None
        second = instance.expiry
        registry.pin("a", True)
        assert second.cancelled() and instance.expiry is None

    run(scenario)


def test_a_model_goes_after_its_time_although_who_it_was_loaded_for_has_left():
    async def scenario(registry, opener):
        registry.register("a", "one", ModelSettings(keep_alive=0))
        waiting = asyncio.create_task(answer(registry, "a"))
        put = registry._loader._put

        def put_and_leave(*args):
            put(*args)
            assert registry.status()[0].num_waiting == 1
            waiting.cancel()

        registry._loader._put = put_and_leave
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await settle()
        assert states(registry) == {"a": "unloaded"} and opener.num_opened == 1

    run(scenario)


@pytest.mark.parametrize("ends", ["remove", "close"])
def test_a_reload_that_comes_after_the_end_of_a_model_opens_nothing(ends):
    async def scenario(registry, opener):
        registry.register("a", "one")
        loading = asyncio.create_task(registry.load("a"))
        await until(lambda: opener.held)
        reloads = [asyncio.create_task(registry.reload("a", "two")) for _ in range(2)]
        await settle()
        ending = asyncio.create_task(registry.close() if ends == "close" else registry.remove("a"))
        await settle()
        for held in opener.held:
            held.go.set_result(None)
        await settle()
        for task in (loading, *reloads):
            with suppress(EngineDeadError, DrainingError):
                await asyncio.wait_for(task, 5)
        await ending
        assert opener.num_opened == 0

    run(scenario, holds=True)


def test_what_a_reload_opens_for_a_model_that_was_removed_is_closed():
    async def scenario(registry, opener):
        registry.register("a", "one")
        reload = asyncio.create_task(registry.reload("a", "two"))
        await until(lambda: opener.held)
        removing = asyncio.create_task(registry.remove("a"))
        await settle()
        removing.cancel()  # it waits for the reload, and nobody waits for it any more
        await settle()
        opener.held[0].go.set_result(None)
        await reload
        await settle()
        assert opener.num_opened == 1 and opener.open_engines == []

    run(scenario, holds=True)


def test_an_instance_that_is_not_used_any_more_has_no_timer():
    async def scenario(registry, opener):
        registry.register("a", "one", ModelSettings(keep_alive=3))
        async with registry.lease("a"):
            entry = registry._find("a")
            instance = entry.instance
            unloading = asyncio.create_task(registry.unload("a"))
            await settle()
        assert instance.expiry is None or instance.expiry.cancelled()
        await unloading

    run(scenario)


@pytest.mark.parametrize("times", [1, 2])
def test_a_model_of_this_process_that_is_unloaded_while_it_opens_is_closed(monkeypatch, times):
    begun, go, closed = threading.Event(), threading.Event(), []

    class Engine:
        async def close(self):
            closed.append(self)

    def opened(path, settings):
        begun.set()
        go.wait()
        return Engine()

    class Opener(opening.LocalOpener):
        open_engines = held = ()

        async def locate(self, source, settings, tell):
            return source

        async def need(self, path, settings, budget):
            return Need(3, settings)

    async def scenario(registry, opener):
        registry._loader._opener = Opener()
        registry.register("a", "one")
        loading = asyncio.create_task(registry.load("a"))
        await until(begun.is_set)
        unloading = [asyncio.create_task(registry.unload("a")) for _ in range(times)]
        await settle()
        assert registry._loader._memory.used == 3 and not closed
        go.set()
        await asyncio.gather(*unloading)
        assert registry._loader._memory.used == 0 and len(closed) == 1
        with pytest.raises(IngotError):
            await loading

    monkeypatch.setattr(opening, "_open_local", opened)
    run(scenario)
