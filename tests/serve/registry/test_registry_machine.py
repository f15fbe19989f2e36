"""Random events on a registry, and what must hold after each."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ingot.errors import IngotError
from ingot.serve.registry.loader import Loader
from ingot.serve.registry.registry import ModelRegistry
from ingot.serve.settings import ModelSettings
from tests.serve.registry.fakes import FakeOpener, settle, size_of

NAMES = "abcd"
ALIASES = "xy"
KEPT = {"c": 3, "d": 0}  # seconds that an idle model stays loaded
BUDGET, MAX_WAITING = 6, 4
STATES = {"unloaded", "loading", "loaded", "unloading", "failed"}


class RegistryMachine(RuleBasedStateMachine):
    """Loads end when the machine lets them; leases are held until it gives them back.

    Each source belongs to one model, so an engine of another one shows.
    """

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now = 0.0
        self.loop.time = lambda: self.now  # it goes on by a rule alone
        self.opener = FakeOpener(holds=True)
        self.tasks = []
        self.leases = []  # the stack that holds it, the name, the engine
        self.forced = set()  # engines that may be closed under a lease
        self.forcing = []  # models and tasks that unload them by force, perhaps in their turn
        self.sources = {}
        self.owners = {}  # of aliases
        self.forgotten = set()  # engines of models that were removed

    def do(self, *coroutines):
        """Begins something, or several things in one turn of the loop, and goes on until nothing
        can go on by itself."""

        async def main():
            self.tasks += [asyncio.create_task(each) for each in coroutines]
            await settle()

        self.loop.run_until_complete(main())

    async def expect_typed(self, awaitable):
        try:
            return await awaitable
        except IngotError:
            return None

    async def set_pin(self, name, pinned):
        self.registry.pin(name, pinned)

    @initialize(sizes=st.lists(st.integers(1, 4), min_size=4, max_size=4))
    def begin(self, sizes):
        async def make():
            return ModelRegistry(self.opener, memory_bytes=BUDGET, max_waiting=MAX_WAITING)

        self.registry = self.loop.run_until_complete(make())
        for name, size in zip(NAMES, sizes, strict=True):
            self.sources[name] = f"{name}0:{size}"
            self.register(name)

    def register(self, name):
        keep = ModelSettings(keep_alive=KEPT.get(name))
        self.registry.register(name, self.sources[name], keep)

    async def take(self, name):
        owner = name if name in NAMES else self.owners.get(name)
        stack = AsyncExitStack()
        engine = await self.expect_typed(stack.enter_async_context(self.registry.lease(name)))
        if engine is not None:
            self.leases.append((stack, owner, engine))

    @rule(name=st.sampled_from(NAMES + ALIASES))
    def lease(self, name):
        self.do(self.take(name))

    @rule(alias=st.sampled_from(ALIASES), name=st.sampled_from(NAMES))
    def alias(self, alias, name):
        async def give():
            self.registry.alias(alias, name)

        self.do(give())
        self.owners[alias] = name

    @rule(name=st.sampled_from(NAMES))
    def remove(self, name):
        """Another model gets the name at once, while requests for the first may be under way."""

        async def register():
            self.register(name)

        self.forgotten |= {each for each in self.opener.open_engines if each.path[0] == name}
        self.owners = {alias: of for alias, of in self.owners.items() if of != name}
        self.do(self.expect_typed(self.registry.remove(name)), register())

    @rule(
        each=st.lists(
            st.tuples(
                st.sampled_from(["lease", "load", "unload", "reload"]), st.sampled_from(NAMES)
            ),
            min_size=2,
            max_size=4,
        )
    )
    def several_in_a_turn(self, each):
        begin = {
            "lease": self.take,
            "load": lambda name: self.expect_typed(self.registry.load(name)),
            "unload": lambda name: self.expect_typed(self.registry.unload(name)),
            "reload": lambda name: self.expect_typed(self.registry.reload(name, f"{name}0:1")),
        }
        self.do(*(begin[what](name) for what, name in each))

    @rule(seconds=st.sampled_from([1, 3]))
    def time_passes(self, seconds):
        self.now += seconds
        self.do()

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def give_back(self, data):
        stack, _, _ = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        self.do(stack.aclose())

    @precondition(lambda self: self.opener.held)
    @rule(data=st.data(), fails=st.booleans())
    def end_a_load(self, data, fails):
        held = self.opener.held[data.draw(st.integers(0, len(self.opener.held) - 1))]
        if fails:
            held.go.set_exception(IngotError("it cannot be opened"))
        else:
            held.go.set_result(None)
        self.do()

    @precondition(lambda self: not all(task.done() for task in self.tasks))
    @rule(data=st.data())
    def cancel(self, data):
        waiting = [task for task in self.tasks if not task.done()]
        waiting[data.draw(st.integers(0, len(waiting) - 1))].cancel()
        self.do()

    @rule(name=st.sampled_from(NAMES))
    def load(self, name):
        self.do(self.expect_typed(self.registry.load(name)))

    @rule(name=st.sampled_from(NAMES), force=st.booleans())
    def unload(self, name, force):
        self.do(self.expect_typed(self.registry.unload(name, force=force)))
        if force:
            self.forcing.append((name, self.tasks[-1]))

    @rule(name=st.sampled_from(NAMES), version=st.integers(1, 99), size=st.integers(1, 4))
    def reload(self, name, version, size):
        self.do(self.expect_typed(self.registry.reload(name, f"{name}{version}:{size}")))

    @rule(name=st.sampled_from("abc"), pinned=st.booleans())
    def pin(self, name, pinned):
        self.do(self.set_pin(name, pinned))

    @precondition(lambda self: self.opener.open_engines)
    @rule(data=st.data(), state=st.sampled_from(["loading", "loaded", "failed"]))
    def change(self, data, state):
        engines = self.opener.open_engines
        engine = engines[data.draw(st.integers(0, len(engines) - 1))]
        if state == "failed":  # it may be closed by a load from now on
            self.forced.add(engine)
        self.opener.changed[engine](state, "it died")
        self.do()

    @invariant()
    def memory_is_counted_and_bounded(self):
        if self.sources:
            held = sum(size_of(each.path) for each in self.opener.held)
            assert self.registry._loader._memory.used == self.opener.num_bytes + held <= BUDGET

    @invariant()
    def no_engine_is_closed_under_a_lease_or_answers_for_another_model(self):
        names = {name for name, _ in self.forcing}
        self.forced |= {engine for _, name, engine in self.leases if name in names}
        self.forcing = [(name, task) for name, task in self.forcing if not task.done()]
        for _, name, engine in self.leases:
            assert engine.path[0] == name
            assert not engine.closed or engine in self.forced

    @invariant()
    def the_status_is_true(self):
        if not self.sources:
            return
        for status in self.registry.status():
            assert status.state in STATES and status.num_waiting <= MAX_WAITING
            mine = [engine for _, name, engine in self.leases if name == status.name]
            mine = [engine for engine in mine if engine not in self.forgotten]
            assert {*status.aliases} == {
                a for a, name in self.owners.items() if name == status.name
            }
            assert status.num_leases >= len([engine for engine in mine if not engine.closed])
            if status.state == "loaded":
                assert status.facts is not None

    @invariant()
    def every_idle_model_has_its_timer_and_no_other_has_one(self):
        if self.sources:
            entries = self.registry._loader._entries.values()
            idle = [
                each.instance.expiry
                for each in entries
                if each.instance and each.settings.keep_alive is not None
                and not (each.instance.num_leases or each.pinned)
            ]  # fmt: skip
            running = {
                timer
                for timer in self.loop._scheduled
                if not timer.cancelled() and not timer._args[0].removed
            }
            assert running == {*idle}

    def teardown(self):
        """Gives everything back and lets every load end: then nobody waits any more."""
        try:
            self.end()
        finally:
            self.loop.run_until_complete(self.give_up(asyncio.all_tasks(self.loop)))
            self.loop.close()

    async def give_up(self, tasks):
        """Python tells of what still waits when a loop is collected, as after a failure."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def end(self):
        if self.sources:
            for name in NAMES:
                self.do(self.set_pin(name, False))
            while self.leases or self.opener.held or not all(t.done() for t in self.tasks):
                assert self.leases or self.opener.held, "somebody waits for nothing"
                for held in self.opener.held:
                    held.go.set_result(None)
                leases, self.leases = self.leases, []
                for stack, _, _ in leases:
                    self.do(stack.aclose())
                self.do()
            self.do(self.registry.close())
            assert self.opener.open_engines == [] and self.registry._loader._memory.used == 0
            assert all(task.cancelled() or not task.exception() for task in self.tasks)
            assert not asyncio.all_tasks(self.loop)


LITTLE = settings(
    max_examples=30,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[*HealthCheck],
    phases=[Phase.generate, Phase.shrink],
)
# What is known to fail need not be made small.
FAILING = settings(LITTLE, max_examples=300, phases=[Phase.generate], derandomize=True)


def test_random_events():
    run_state_machine_as_test(RegistryMachine, settings=LITTLE)


@pytest.mark.slow
def test_more_random_events():
    more = settings(LITTLE, max_examples=250, stateful_step_count=60)
    run_state_machine_as_test(RegistryMachine, settings=more)


@pytest.mark.slow
def test_the_machine_sees_an_engine_that_is_unloaded_under_a_lease(monkeypatch):
    monkeypatch.setattr(
        "ingot.serve.registry.loader.Loader.begin_use",
        lambda self, instance: setattr(instance, "num_leases", instance.num_leases + 1),
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(RegistryMachine, settings=FAILING)


def test_the_machine_sees_memory_that_is_not_given_back(monkeypatch):
    monkeypatch.setattr("ingot.serve.registry.memory.MemoryBudget.free", lambda self, nbytes: None)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(RegistryMachine, settings=FAILING)


def test_the_machine_sees_a_load_whose_end_nobody_is_told(monkeypatch):
    end = Loader._end_load

    def forgetful(self, entry, loading, task):
        if not task.cancelled():
            end(self, entry, loading, task)

    monkeypatch.setattr(Loader, "_end_load", forgetful)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(RegistryMachine, settings=FAILING)


@pytest.mark.thorough
def test_the_machine_sees_an_alias_that_outlives_its_model(monkeypatch):
    async def remove(self, name):
        entry = self._find(name)
        self._entries.pop(entry.name).removed = True
        await self._loader.unload(entry, force=False)

    monkeypatch.setattr(ModelRegistry, "remove", remove)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(RegistryMachine, settings=FAILING)


@pytest.mark.thorough
def test_the_machine_sees_a_second_timer(monkeypatch):
    monkeypatch.setattr("ingot.serve.registry.entries.Instance.stop_timer", lambda self: None)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(RegistryMachine, settings=FAILING)
