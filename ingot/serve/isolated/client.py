"""`IsolatedEngine`: a model in a process of its own as an `Engine`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from ingot.artifact.reader import Artifact
from ingot.errors import ArtifactError, TokenizerError
from ingot.runtime.metrics import EngineCounters
from ingot.runtime.tokenizer import Tokenizer
from ingot.runtime.tokenizer_files import TokenizerFiles
from ingot.serve.engine import Job, ModelFacts, Progress, joined
from ingot.serve.isolated.process import EngineProcess, Lost
from ingot.serve.isolated.spawn import Spawn, spawned
from ingot.serve.isolated.supervisor import Changed, Patience, Supervisor
from ingot.serve.isolated.weights_seen import WeightsSeen, look
from ingot.serve.settings import ModelSettings


class IsolatedEngine:
    """Runs jobs in an engine process, which is started again when it dies. For one event loop.

    While there is no process, jobs wait for the next. Of those that a process was given when it
    died, none is run again: each fails with EngineDeadError.
    """

    facts: ModelFacts

    def __init__(self, supervisor: Supervisor, files: TokenizerFiles) -> None:
        self.supervisor = supervisor
        self._files = files

    @classmethod
    async def open(
        cls,
        name: str,
        path: str,
        settings: ModelSettings,
        patience: Patience | None = None,
        changed: Changed = lambda state, why: None,
        spawn: Spawn = spawned,
        seen: WeightsSeen | None = None,
    ) -> IsolatedEngine:
        """Opens an artifact in a new process. Raises what opening it raises, and EngineDeadError.

        `name` is for errors and the log; `changed` is told of every start and end, `spawn` gives
        new processes, and `seen` knows the weights of artifacts that were opened before.
        """
        digest, seen = "", seen or WeightsSeen()

        async def start(lost: Lost) -> EngineProcess:
            found = await asyncio.to_thread(look, path)
            check = seen.check_of(path, found)
            process = await EngineProcess.start(name, path, settings, spawn, check, lost)
            if digest and process.facts.artifact_id != digest:
                process.kill("was opened on another artifact")
                raise ArtifactError(f"{path} has changed", hint="Reload the model.")
            seen.trust(path, found)
            return process

        supervisor = Supervisor(name, start, patience or Patience(), changed)
        reading = asyncio.create_task(asyncio.to_thread(_tokenizer_files, path))
        try:
            process = await supervisor.open()
            engine = cls(supervisor, await reading)
        except BaseException:
            reading.cancel()
            await supervisor.close()
            raise
        engine.facts, digest = process.facts, process.facts.artifact_id
        return engine

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises TokenizerError where the model has none."""
        return self._files.tokenizer

    async def ask(self, job: Job) -> AsyncGenerator[Progress, None]:
        """Runs a job; see `Engine`. Raises PoisonedRequestError for one that has killed engines."""
        suspects = self.supervisor.suspects
        async with suspects.admitted(job.fingerprint):
            process = await self.supervisor.process()
            number, mailbox = process.begin(job)
            try:
                while True:
                    progress = joined(await mailbox.get())
                    yield progress
                    if progress.finished:
                        suspects.acquit(job.fingerprint)
                        return
            finally:
                process.drop(number)

    async def counters(self) -> EngineCounters:
        """Counters of the engine. Raises EngineDeadError, also while it is started again."""
        return await self.supervisor.counters()

    async def close(self) -> None:
        """Ends all jobs with EngineDeadError and the process. May be called twice."""
        await self.supervisor.close()


def _tokenizer_files(path: str) -> TokenizerFiles:
    """With the tokenizer parsed, which takes longer than a turn of an event loop should."""
    files = TokenizerFiles(Artifact.open(path))
    with suppress(TokenizerError):  # it is raised where a tokenizer is needed
        _ = files.tokenizer
    return files
