"""`LocalEngine`: a model of this process as an `Engine`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator

from ingot.errors import EngineDeadError, IngotError, RequestError
from ingot.runtime.llm import LLM
from ingot.runtime.mailbox import Mailbox, call_in
from ingot.runtime.metrics import EngineCounters
from ingot.runtime.model import Model
from ingot.runtime.subscription import News
from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.engine import Job, ModelFacts, Progress, joined
from ingot.serve.progress import add_job, facts_of, told
from ingot.serve.session_jobs import SessionJobs
from ingot.serve.settings import ModelSettings
from ingot.serve.text_jobs import TextJobs

Letters = list[tuple[int, Progress | IngotError]]


class LocalEngine:
    """Runs jobs on a model that is open in this process, and closes it. For several event loops.

    `settings` are those that the model was opened with.
    """

    def __init__(self, model: Model, settings: ModelSettings | None = None) -> None:
        settings = settings or ModelSettings(context=model.max_model_len)
        self.facts: ModelFacts = facts_of(model, settings)
        self._model = model
        self._feed = None
        if not model.artifact.manifest.encodes:
            self._feed = model.feed(self._tell, settings.stream_interval)
        self._texts = TextJobs(model.texts, self._tell_one) if model.texts else None
        self._sessions = None
        if self._feed and isinstance(model, LLM):
            self._sessions = SessionJobs(model, self._feed, settings, self._tell_one)
        self._numbers = itertools.count()
        self._mailboxes: dict[int, Mailbox[Progress]] = {}
        self._closed = False

    @property
    def tokenizer(self) -> Tokenizer:
        """Parsed when first asked for. Raises TokenizerError where the model has none."""
        return self._model.get_tokenizer()

    async def ask(self, job: Job) -> AsyncGenerator[Progress, None]:
        """Runs a job; see `Engine`."""
        if self._closed:
            raise _closed_error()
        number = next(self._numbers)
        mailbox = self._mailboxes[number] = Mailbox(asyncio.get_running_loop())
        try:
            await asyncio.to_thread(self._add, number, job)
            while True:
                progress = joined(await mailbox.get())
                yield progress
                if progress.finished:
                    return
        finally:
            del self._mailboxes[number]
            self._drop(number)

    async def counters(self) -> EngineCounters:
        """Counters of the engine. Raises EngineDeadError."""
        if self._closed:
            raise _closed_error()
        return await asyncio.to_thread(self._model.counters)

    async def close(self) -> None:
        """Ends all jobs with EngineDeadError and closes the model. May be called twice."""
        self._closed = True
        for mailbox in [*self._mailboxes.values()]:
            mailbox.post(_closed_error())
        await asyncio.to_thread(self._model.close)

    def _add(self, number: int, job: Job) -> None:
        if job.texts and self._texts:
            self._texts.add(number, job)
        elif job.session and self._sessions:
            self._sessions.add(number, job)
        elif self._feed and not (job.texts or job.session):
            add_job(self._feed, number, job)
        else:
            raise RequestError("the model cannot be asked for that", hint="See its tasks.")
        if number not in self._mailboxes:  # its reader left meanwhile
            self._drop(number)

    def _drop(self, number: int) -> None:
        if self._feed:
            self._feed.drop(number)
        for jobs in (self._texts, self._sessions):
            if jobs:
                jobs.drop(number)

    def _tell_one(self, number: int, told: Progress | IngotError) -> None:
        """Hands a job what has become of it. In any thread."""
        mailbox = self._mailboxes.get(number)
        if mailbox is not None:
            call_in(mailbox.loop, self._deliver, [(number, told)])

    def _tell(self, news: News) -> None:
        """Hands what is new to each event loop in one call. In the engine's thread."""
        loops: dict[asyncio.AbstractEventLoop, Letters] = {}
        for number, request in news:
            mailbox = self._mailboxes.get(number)
            if mailbox is not None:
                loops.setdefault(mailbox.loop, []).append((number, told(request)))
        for loop, letters in loops.items():
            call_in(loop, self._deliver, letters)

    def _deliver(self, letters: Letters) -> None:
        for number, item in letters:
            mailbox = self._mailboxes.get(number)
            if mailbox is not None:
                failed = isinstance(item, IngotError)
                mailbox.put(_closed_error() if failed and self._closed else item)


def _closed_error() -> EngineDeadError:
    return EngineDeadError("the engine was closed", hint="Load the model again.")
