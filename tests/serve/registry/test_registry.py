"""The registry over engines that are made up."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from ingot.errors import (
    ArtifactError,
    DrainingError,
    EngineDeadError,
    QueueFullError,
    ResourceError,
    UnknownModelError,
    UsageError,
)
from ingot.serve.isolated.supervisor import Patience
from ingot.serve.registry.opening import IsolatedOpener
from ingot.serve.registry.registry import ModelRegistry
from ingot.serve.settings import ModelSettings
from tests.serve.registry.fakes import FakeOpener, answer, settle
from tests.support.until import until


def run(scenario, *, holds=False, **options):
    """Runs `scenario(registry, opener)`; at the end no engine is left, and no memory taken."""

    async def main():
        opener = FakeOpener(holds=holds)
        async with ModelRegistry(opener, **options) as registry:
            result = await asyncio.wait_for(scenario(registry, opener), 60)
        assert opener.open_engines == [] and registry._loader._memory.used == 0
        assert opener.held == [] and len(asyncio.all_tasks()) == 1
        return result

    return asyncio.run(main())


def states(registry):
    return {status.name: status.state for status in registry.status()}


def test_a_model_is_loaded_once_for_all_who_ask_at_first():
    async def scenario(registry, opener):
        registry.register("a", "one", aliases=["b"])
        assert states(registry) == {"a": "unloaded"}
        answers = await asyncio.gather(*(answer(registry, name) for name in "abab"))
        assert answers == ["one"] * 4 and opener.num_opened == 1
        (status,) = registry.status()
        assert (status.state, status.aliases, status.nbytes) == ("loaded", ["b"], 1)
        assert status.facts.artifact_id == "one" and status.last_used and status.load_seconds >= 0

    run(scenario)


@pytest.mark.parametrize(
    "name", ["", ".a", "-a", "a/b/c", "a//b", "../a", "a b", "ä", "a" * 129, "a\n", 5, None, "a/.b"]
)
def test_names_that_no_model_can_have_are_refused(name):
    async def scenario(registry, opener):
        registry.register("fine/Name-1.5_b", "one")
        with pytest.raises(UsageError, match="is no name for a model"):
            registry.register(name, "one")
        with pytest.raises(UsageError, match="is no name for a model"):
            registry.register("other", "one", aliases=[name])
        with pytest.raises(UsageError, match="is no name for a model"):
            registry.alias(name, "fine/Name-1.5_b")
        assert list(states(registry)) == ["fine/Name-1.5_b"]

    run(scenario)


def test_names_that_are_taken_or_unknown_are_refused():
    async def scenario(registry, opener):
        registry.register("a", "one", aliases=["b"])
        for name in "ab":
            with pytest.raises(UsageError, match="is taken"):
                registry.register(name, "two")
        with pytest.raises(UsageError, match="a is a model"):
            registry.alias("a", "b")
        for call in (registry.load, registry.unload, registry.reload, registry.remove):
            with pytest.raises(UnknownModelError, match=r"no model 'x'.*\nThere are: a\."):
                await call("x")
        with pytest.raises(UnknownModelError):
            await answer(registry, "x")
        with pytest.raises(UnknownModelError):
            registry.pin("x")

    run(scenario)


def test_a_source_that_is_no_text_is_refused():
    async def scenario(registry, opener):
        registry.register("a", "one")
        with pytest.raises(UsageError, match="is not valid UTF-8"):
            registry.register("b", "two\udcff")
        with pytest.raises(UsageError, match="is not valid UTF-8"):
            await registry.reload("a", "two\udcff")
        assert list(states(registry)) == ["a"]

    run(scenario)


def test_an_alias_can_be_moved_to_another_model():
    async def scenario(registry, opener):
        registry.register("a", "one", aliases=["best"])
        registry.register("b", "two")
        assert await answer(registry, "best") == "one"
        registry.alias("best", "b")
        assert await answer(registry, "best") == "two" and registry.name_of("best") == "b"

    run(scenario)


def test_the_longest_unused_idle_model_makes_room():
    async def scenario(registry, opener):
        for name in "abc":
            registry.register(name, f"{name}:2")
        for name in "abac":
            await answer(registry, name)
        assert states(registry) == {"a": "loaded", "b": "unloaded", "c": "loaded"}
        assert opener.most_bytes == 4

    run(scenario, memory_bytes=4)


def test_of_idle_models_those_of_a_larger_priority_number_go_first_and_pinned_ones_stay():
    async def scenario(registry, opener):
        registry.register("pinned", "p:1", ModelSettings(priority=9), pinned=True)
        registry.register("spare", "s:1", ModelSettings(priority=5))
        registry.register("usual", "u:1")
        registry.register("new", "n:1")
        for name in ("pinned", "usual", "spare", "new"):
            await answer(registry, name)
        assert states(registry) == {
            "pinned": "loaded", "spare": "unloaded", "usual": "loaded", "new": "loaded",
        }  # fmt: skip

    run(scenario, memory_bytes=3)


def test_nothing_is_unloaded_under_a_lease_and_who_waits_gets_the_room_afterwards():
    async def scenario(registry, opener):
        registry.register("a", "a:2")
        registry.register("b", "b:2")
        async with registry.lease("a") as engine:
            waiting = asyncio.create_task(answer(registry, "b"))
            await settle()
            assert not engine.closed and not waiting.done()
            assert states(registry) == {"a": "loaded", "b": "loading"}
            assert registry.status()[1].progress == "waiting for memory"
        assert await waiting == "b:2" and engine.closed

    run(scenario, memory_bytes=3)


def test_a_model_that_can_never_fit_is_refused_with_its_size():
    async def scenario(registry, opener):
        registry.register("big", "big:5")
        registry.register("a", "a:2", pinned=True)
        registry.register("b", "b:3")
        with pytest.raises(ResourceError, match="takes 5 bytes, the memory budget is 4"):
            await registry.load("big")
        await registry.load("a")
        with pytest.raises(ResourceError, match="pinned models have 2 of it: a"):
            await registry.load("b")
        with pytest.raises(EngineDeadError):
            await answer(registry, "b")
        registry.pin("a", False)
        assert await answer(registry, "b") == "b:3", "it is tried again once there may be room"

    run(scenario, memory_bytes=4)


def test_a_model_that_cannot_be_loaded_says_why_to_who_loads_it_and_no_more_to_others():
    async def scenario(registry, opener):
        for name in ("bad", "missing"):
            registry.register(name, name)
            for _ in range(2):
                with pytest.raises(EngineDeadError, match=f"the model {name} has failed") as found:
                    await answer(registry, name)
                assert "secret" not in str(found.value)
            with pytest.raises(ArtifactError, match="secret"):
                await registry.load(name)
        registry.register("good", "good")
        assert await answer(registry, "good") == "good"
        assert states(registry) == {"bad": "failed", "missing": "failed", "good": "loaded"}
        assert "damaged" in registry.status()[0].error
        await registry.reload("bad", "repaired")
        assert await answer(registry, "bad") == "repaired" and registry.status()[0].error is None

    run(scenario)


def test_so_many_wait_for_a_model_to_load_and_no_more():
    async def scenario(registry, opener):
        registry.register("a", "one")
        waiting = [asyncio.create_task(answer(registry, "a")) for _ in range(3)]
        await settle()
        with pytest.raises(QueueFullError, match="3 requests wait for a to load"):
            await answer(registry, "a")
        assert registry.status()[0].num_waiting == 3
        waiting[0].cancel()
        await settle()
        last = asyncio.create_task(answer(registry, "a"))
        await settle()
        opener.held[0].go.set_result(None)
        assert await asyncio.gather(*waiting[1:], last) == ["one"] * 3
        assert registry.status()[0].num_waiting == 0

    run(scenario, holds=True, max_waiting=3)


def test_unloading_waits_for_leases_and_the_next_request_loads_again():
    async def scenario(registry, opener):
        registry.register("a", "one")
        async with registry.lease("a") as engine:
            unloading = asyncio.create_task(registry.unload("a"))
            await settle()
            assert states(registry) == {"a": "unloading"} and not engine.closed
            assert await answer(registry, "a") == "one"  # by an engine of its own
        await unloading
        assert engine.closed and opener.num_opened == 2
        await registry.unload("a")
        await registry.unload("a")
        assert states(registry) == {"a": "unloaded"} and opener.open_engines == []

    run(scenario)


def test_unloading_by_force_ends_what_runs():
    async def scenario(registry, opener):
        registry.register("a", "one")
        async with registry.lease("a") as engine:
            await registry.unload("a", force=True)
            assert engine.closed and states(registry) == {"a": "unloaded"}

    run(scenario)


def test_unloading_a_model_that_loads_ends_its_loading_and_those_who_wait():
    async def scenario(registry, opener):
        registry.register("a", "one")
        waiting = asyncio.create_task(answer(registry, "a"))
        await settle()
        await registry.unload("a")
        with pytest.raises(EngineDeadError):
            await waiting
        assert states(registry) == {"a": "unloaded"} and opener.held == []

    run(scenario, holds=True)


def test_who_gives_up_waiting_for_room_does_not_stop_what_makes_it():
    async def scenario(registry, opener):
        registry.register("a", "a:2")
        registry.register("b", "b:2")
        await registry.load("a")
        waiting = asyncio.create_task(answer(registry, "b"))
        await until(lambda: registry.status()[0].state != "loaded")
        assert registry.status()[0].state == "unloading"
        await registry.unload("b")
        with pytest.raises(EngineDeadError):
            await waiting
        await settle()
        assert opener.open_engines == [] and await answer(registry, "b") == "b:2"

    run(scenario, memory_bytes=3)


def test_a_reload_takes_over_while_the_old_engine_ends_its_requests():
    async def scenario(registry, opener):
        registry.register("a", "one")
        async with registry.lease("a") as old:
            await registry.reload("a", "two")
            assert await answer(registry, "a") == "two" and not old.closed
            assert registry.status()[0].progress is None
            assert [engine.path for engine in opener.open_engines] == ["one", "two"]
        await settle()
        assert old.closed and registry.status()[0].source == "two"
        await registry.unload("a")
        assert await answer(registry, "a") == "two"

    run(scenario, memory_bytes=2)


def test_a_failed_model_that_is_unloaded_has_not_failed_any_more():
    async def scenario(registry, opener):
        registry.register("a", "bad")
        with pytest.raises(ArtifactError):
            await registry.load("a")
        assert states(registry) == {"a": "failed"}
        await registry.unload("a")
        (status,) = registry.status()
        assert (status.state, status.error) == ("unloaded", None)

    run(scenario)


def test_a_dead_engine_leaves_the_counters_of_the_others():
    async def scenario(registry, opener):
        for name in ("a", "b"):
            registry.register(name, name)
            await registry.load(name)
        opener.open_engines[0].closed = True
        assert list(await registry.counters()) == ["b"]
        opener.open_engines[0].closed = False

    run(scenario)


def test_what_becomes_of_a_retired_engine_says_nothing_of_its_model():
    async def scenario(registry, opener):
        registry.register("a", "one")
        async with registry.lease("a") as old:
            await registry.reload("a", "two")
            opener.changed[old]("loading", "it died")
            opener.changed[old]("failed", "it died too often")
            (status,) = registry.status()
            assert (status.state, status.error, status.num_restarts) == ("loaded", None, 0)

    run(scenario)


@pytest.mark.parametrize("pinned", [False, True])
def test_a_reload_takes_over_where_memory_has_just_room_for_both(pinned):
    async def scenario(registry, opener):
        registry.register("a", "one", pinned=pinned)
        async with registry.lease("a"):
            reloading = asyncio.create_task(registry.reload("a", "two"))
            await settle()
            assert reloading.done()
        await reloading

    run(scenario, memory_bytes=2)


def test_a_reload_without_room_for_both_lets_requests_wait_and_loses_none():
    async def scenario(registry, opener):
        registry.register("a", "one:2")
        async with registry.lease("a") as old:
            reloading = asyncio.create_task(registry.reload("a", "two:2"))
            await settle()
            waiting = [asyncio.create_task(answer(registry, "a")) for _ in range(3)]
            await settle()
            assert not old.closed and not any(task.done() for task in waiting)
        await reloading
        assert await asyncio.gather(*waiting) == ["two:2"] * 3 and old.closed
        assert opener.most_bytes == 2

    run(scenario, memory_bytes=3)


def test_a_reload_that_fails_leaves_the_old_engine():
    async def scenario(registry, opener):
        registry.register("a", "one")
        assert await answer(registry, "a") == "one"
        for source in ("bad", "missing"):
            with pytest.raises(ArtifactError):
                await registry.reload("a", source)
            assert registry.status()[0].progress is None
        assert await answer(registry, "a") == "one" and states(registry) == {"a": "loaded"}
        assert opener.num_opened == 1

    run(scenario)


def test_a_reload_that_had_to_unload_first_and_fails_is_told():
    async def scenario(registry, opener):
        registry.register("a", "one:2")
        await registry.load("a")
        with pytest.raises(ArtifactError):
            await registry.reload("a", "bad:2")
        assert states(registry) == {"a": "failed"}
        await registry.load("a")
        assert await answer(registry, "a") == "one:2"

    run(scenario, memory_bytes=3)


def test_a_model_is_unloaded_when_it_was_idle_for_its_time():
    async def scenario(registry, opener):
        registry.register("at-once", "one", ModelSettings(keep_alive=0))
        registry.register("stays", "two", ModelSettings(keep_alive=1000))
        registry.register("pinned", "three", ModelSettings(keep_alive=0), pinned=True)
        for name in ("at-once", "stays", "pinned"):
            await asyncio.gather(*(answer(registry, name) for _ in range(3)))
        await settle()
        assert states(registry) == {"at-once": "unloaded", "stays": "loaded", "pinned": "loaded"}
        assert opener.num_opened == 3
        registry.pin("pinned", False)
        await settle()
        assert states(registry)["pinned"] == "unloaded"

    run(scenario)


def test_a_model_that_loads_for_somebody_is_not_unloaded_before_he_gets_it():
    async def scenario(registry, opener):
        for name in "ab":
            registry.register(name, f"{name}:1", ModelSettings(keep_alive=0))
        answers = await asyncio.gather(*(answer(registry, n) for n in "abab" * 5))
        assert answers == ["a:1", "b:1", "a:1", "b:1"] * 5
        assert opener.num_opened <= 6 and opener.most_bytes == 1

    run(scenario, memory_bytes=1)


def test_an_engine_that_starts_again_is_loading_and_one_that_is_given_up_has_failed():
    async def scenario(registry, opener):
        registry.register("a", "one")
        await registry.load("a")
        (changed,) = opener.changed.values()
        changed("loading", "the engine was killed")
        assert states(registry) == {"a": "loading"}
        changed("loaded", "")
        assert await answer(registry, "a") == "one"
        changed("failed", "it died too often")
        (status,) = registry.status()
        assert (status.state, status.error, status.num_restarts) == (
            "failed", "it died too often", 1,
        )  # fmt: skip
        with pytest.raises(EngineDeadError, match="the model a has failed"):
            await answer(registry, "a")
        await registry.load("a")
        assert await answer(registry, "a") == "one" and opener.num_opened == 2

    run(scenario)


def test_events_tell_what_happens_and_end_with_the_registry():
    async def scenario(registry, opener):
        seen = []

        async def watch():
            async for event in registry.events():
                seen.append((event.name, event.state, event.seconds is not None))

        watching = asyncio.create_task(watch())
        await settle()
        registry.register("a", "one")
        await answer(registry, "a")
        await registry.unload("a")
        await registry.close()
        await watching
        kept = [each for i, each in enumerate(seen) if each not in seen[:i]]
        assert kept == [
            ("a", "unloaded", False), ("a", "loading", False), ("a", "loaded", True),
            ("a", "unloading", False),
        ]  # fmt: skip

    run(scenario)


def test_who_watches_slowly_misses_the_oldest_events(monkeypatch):
    async def scenario(registry, opener):
        monkeypatch.setattr("ingot.serve.registry.events.MOST", 2)
        events = registry.events()
        first = asyncio.create_task(anext(events))
        await settle()
        for name in "abcd":
            registry.register(name, name)
        assert (await first).name == "c"
        assert (await anext(events)).name == "d"
        await events.aclose()

    run(scenario)


def test_closing_ends_everything_and_refuses_the_rest():
    async def scenario(registry, opener):
        registry.register("a", "one")
        registry.register("b", "two")
        waiting = asyncio.create_task(answer(registry, "b"))
        await settle()
        await registry.close()
        with pytest.raises((DrainingError, EngineDeadError)):
            await waiting
        for call in (answer(registry, "a"), registry.load("a"), registry.unload("a")):
            with pytest.raises(DrainingError):
                await call
        await registry.close()

    run(scenario, holds=True)


def test_counters_are_those_of_loaded_models_and_one_that_hangs_is_left_out(monkeypatch):
    monkeypatch.setattr("ingot.serve.registry.registry.COUNTERS_SECONDS", 0.01)

    async def scenario(registry, opener):
        for name in "abc":
            registry.register(name, name)
        await registry.load("a")
        await registry.load("b")
        opener.open_engines[1].counters = asyncio.Event().wait
        used = registry.status()[0].last_used
        counters = await registry.counters()
        assert list(counters) == ["a"] and counters["a"][0].artifact_id == "a"
        assert registry.status()[0].last_used == used

    run(scenario)


def test_a_removed_model_is_unknown_and_its_names_are_free():
    async def scenario(registry, opener):
        registry.register("a", "one", aliases=["b"])
        async with registry.lease("a") as engine:
            removing = asyncio.create_task(registry.remove("b"))
            await settle()
            assert not engine.closed
            with pytest.raises(UnknownModelError):
                await answer(registry, "b")
        await removing
        registry.register("b", "two")
        assert await answer(registry, "b") == "two"

    run(scenario)


def test_several_registries_know_nothing_of_one_another():
    async def scenario(registry, opener):
        async with ModelRegistry(FakeOpener()) as other:
            registry.register("a", "one")
            other.register("a", "two")
            assert (await answer(registry, "a"), await answer(other, "a")) == ("one", "two")

    run(scenario)


def test_another_event_loop_is_refused():
    async def scenario(registry, opener):
        registry.register("a", "one")

        async def elsewhere():
            with contextlib.suppress(UnknownModelError):
                await registry.load("a")

        with pytest.raises(UsageError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, elsewhere())

    run(scenario)


def test_a_model_can_have_a_watchdog_of_its_own(monkeypatch):
    given = []

    async def opened(name, path, settings, patience, changed, spawn, seen):
        given.append(patience.watchdog_seconds)

    monkeypatch.setattr("ingot.serve.registry.opening.IsolatedEngine.open", opened)

    async def main():
        opener = IsolatedOpener(Patience(watchdog_seconds=30))
        for settings in (ModelSettings(), ModelSettings(watchdog=5)):
            await opener.open("m", "path", settings, lambda state, why: None)

    asyncio.run(main())
    assert given == [30, 5]
