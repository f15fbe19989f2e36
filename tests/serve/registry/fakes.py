"""Engines and an opener that are made up: nothing is computed, and everything is counted."""

from __future__ import annotations

import asyncio

from msgspec import Struct
from msgspec.structs import replace

from ingot.errors import ArtifactError, EngineDeadError
from ingot.runtime.metrics import EngineCounters
from ingot.serve.engine import Job, Piece, Progress
from ingot.serve.registry.opening import Need
from tests.support.fake_engine import FACTS


class FakeEngine:
    """Answers a job with the source that it was opened from, so that a wrong engine shows."""

    tokenizer = None

    def __init__(self, opener, name, path):
        self.facts = replace(FACTS, artifact_id=path)
        self.opener, self.name, self.path = opener, name, path
        self.num_running = 0
        self.closed = False

    async def ask(self, job: Job):
        for _ in range(3):
            if self.closed:
                raise EngineDeadError("closed")
            self.num_running += 1
            try:
                await asyncio.sleep(0)
                yield Progress([Piece(0, self.path, [1])])
            finally:
                self.num_running -= 1
        yield Progress([Piece(0, self.path, [2], None, "stop")], finished=True)

    async def counters(self):
        if self.closed:
            raise EngineDeadError("closed")
        return EngineCounters(num_running=self.num_running)

    async def close(self):
        for _ in range(5):
            await asyncio.sleep(0)
        if not self.closed:
            self.closed = True
            self.opener.open_engines.remove(self)


class Held(Struct):
    """A load that waits to be let through, or to fail."""

    name: str
    path: str
    go: asyncio.Future


class FakeOpener:
    """Opens engines of the sizes that their sources say: `big:3` takes 3 bytes.

    `holds` lets no load through before `held` is told. Sources that begin with `bad` fail, and
    those that begin with `folder` are made to `compiled`.
    """

    def __init__(self, *, holds=False):
        self.holds = holds
        self.known: tuple[int, int | None] = (0, None)  # when it was made, and its context
        self.held: list[Held] = []
        self.open_engines: list[FakeEngine] = []
        self.changed = {}
        self.num_opened = 0
        self.most_bytes = 0

    async def locate(self, source, settings, tell):
        tell(f"locating {source}")
        await asyncio.sleep(0)
        if source.startswith("missing"):
            raise ArtifactError(f"/secret/{source} does not exist")
        return "compiled" if source.startswith("folder") else source

    async def need(self, path, settings, budget):
        await asyncio.sleep(0)
        return Need(size_of(path), settings, *self.known)

    async def open(self, name, path, settings, changed):
        if self.holds:
            held = Held(name, path, asyncio.get_running_loop().create_future())
            self.held.append(held)
            try:
                await held.go
            finally:
                self.held.remove(held)
        else:
            await asyncio.sleep(0)
        if path.startswith("bad"):
            raise ArtifactError(f"/secret/{path} is damaged")
        engine = FakeEngine(self, name, path)
        self.open_engines.append(engine)
        self.changed[engine] = changed
        self.num_opened += 1
        self.most_bytes = max(self.most_bytes, self.num_bytes)
        return engine

    @property
    def num_bytes(self):
        return sum(size_of(engine.path) for engine in self.open_engines)


def size_of(path):
    return int(path.partition(":")[2] or 1)


async def answer(registry, name):
    """The source of the engine that answers a request for a model."""
    async with registry.lease(name) as engine:
        texts = [p.pieces[0].text async for p in engine.ask(Job(id="", token_ids=[1]))]
    assert len(texts) == 4 and len(set(texts)) == 1
    return texts[0]


async def settle():
    """Lets everything that can go on without us do so."""
    for _ in range(60):
        await asyncio.sleep(0)
