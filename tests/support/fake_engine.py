"""An engine that answers what a test tells it to, and a registry of such engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ingot.errors import UnknownModelError
from ingot.runtime.metrics import EngineCounters
from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.engine import Engine, Job, ModelFacts, Piece, Progress
from tests.conftest import SHAKESPEARE

# A step of a script: what the engine gives, an error that ends the job, or what it waits for.
Step = Progress | Exception | asyncio.Event
Script = Callable[[Job], Iterable[Step]]

FACTS = ModelFacts(
    artifact_id="shakespeare",
    fingerprint="1.0-0badcafe",
    vocab_size=2048,
    max_model_len=1024,
    max_num_seqs=16,
    num_pages=64,
    page_size=16,
    architecture="Qwen3ForCausalLM",
    created=1_700_000_000,
)


@cache
def bundled_tokenizer() -> Tokenizer:
    """The tokenizer of the bundled model, from its directory."""
    import json

    config = json.loads((SHAKESPEARE / "tokenizer_config.json").read_text())
    return Tokenizer((SHAKESPEARE / "tokenizer.json").read_bytes(), config, vocab_size=2048)


class FakeEngine:
    """Runs a script for each job. `jobs` are those asked for, and `aborted` the ids of those whose
    reader left. `ended` is set while all that were asked for have ended."""

    def __init__(self, script: Script, facts: ModelFacts = FACTS) -> None:
        self.facts = facts
        self.tokenizer = bundled_tokenizer()
        self.jobs: list[Job] = []
        self.aborted: list[str] = []
        self.ended = asyncio.Event()
        self._script = script
        self._num_running = 0

    async def ask(self, job: Job) -> AsyncGenerator[Progress, None]:
        self.jobs.append(job)
        self._num_running += 1
        self.ended.clear()
        done = False
        try:
            for step in self._script(job):
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, Exception):
                    raise step
                else:
                    yield step
            done = True
        except Exception:
            done = True
            raise
        finally:
            if not done:
                self.aborted.append(job.id)
            self._num_running -= 1
            if not self._num_running:
                self.ended.set()

    async def counters(self) -> EngineCounters:
        return EngineCounters()

    async def close(self) -> None:
        pass


@dataclass
class FakeStatus:
    name: str
    state: str = "loaded"
    aliases: list[str] = field(default_factory=list)
    facts: ModelFacts | None = FACTS
    num_restarts: int = 0
    error: str | None = None
    created: int = FACTS.created
    max_model_len: int | None = FACTS.max_model_len


class FakeModels:
    """A registry of engines that are always loaded."""

    def __init__(self, **engines: Engine) -> None:
        self.engines: dict[str, Engine] = dict(engines)
        self.states: dict[str, str] = {}
        self.num_leases = self.num_restarts = 0
        self.error: str | None = None

    @asynccontextmanager
    async def lease(self, name: str) -> AsyncIterator[Engine]:
        engine = self.engines[self.name_of(name)]
        self.num_leases += 1
        try:
            yield engine
        finally:
            self.num_leases -= 1

    def name_of(self, name: str) -> str:
        if name not in self.engines:
            raise UnknownModelError(f"no model is called {name!r}")
        return name

    def status(self) -> list[FakeStatus]:
        return [
            FakeStatus(
                name,
                self.states.get(name, "loaded"),
                facts=engine.facts,
                num_restarts=self.num_restarts,
                error=self.error,
            )
            for name, engine in self.engines.items()
        ]


def says(*texts: str, reason: str = "stop", **last: Any) -> Script:
    """A script in which every completion of a job says these texts, a token each, and ends."""

    def script(job: Job) -> Iterable[Step]:
        choices = range(job.params.get("n", 1))
        for number, text in enumerate(texts):
            ends = number == len(texts) - 1
            pieces = [
                Piece(i, text, [100 + number], None, reason if ends else None) for i in choices
            ]
            yield Progress(pieces, ends, **(last if ends else {}))

    return script
