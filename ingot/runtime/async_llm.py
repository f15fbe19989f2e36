"""`AsyncLLM`: the same model for asyncio. A thread of its own runs the steps."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from ingot.artifact.reader import Artifact
from ingot.errors import UsageError
from ingot.runtime.config import EngineConfig
from ingot.runtime.llm import LLM
from ingot.runtime.metrics import EngineCounters
from ingot.runtime.output import RequestOutput
from ingot.runtime.params import RequestOutputKind, SamplingParams
from ingot.runtime.prompts import Messages, Prompt
from ingot.runtime.request import Request
from ingot.runtime.session import Session
from ingot.runtime.tokenizer import Tokenizer

Job = Callable[[], object]


class AsyncLLM:
    """A model whose requests are async iterators; the options are those of `LLM`.

    Cancelling the task that reads a request, or leaving its loop early, aborts the request. An
    async context manager. Use it from one event loop or several.
    """

    def __init__(self, model: str | Path | Artifact, **options: Any) -> None:
        self._llm = self._open(model, options)
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        thread = threading.Thread(
            target=_serve, args=(self._llm._session, self._jobs), name="ingot-engine", daemon=True
        )
        thread.start()
        self._close = weakref.finalize(self, _stop, self._llm, self._jobs, thread)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Completes a prompt; gives an output for every step, or fewer if they are not taken.

        What they hold says `sampling_params.output_kind`. Raises RequestError for a prompt that
        cannot be served and for a `request_id` that is in use, QueueFullError, and UsageError
        after `close`.
        """
        params = sampling_params or SamplingParams()
        inbox = _Inbox(asyncio.get_running_loop(), params.output_kind)
        ticket = await asyncio.to_thread(
            self._llm._ticket, prompt, params, priority, request_id=request_id, listener=inbox.put
        )
        session, jobs = self._llm._session, self._jobs
        added = self._run(lambda: session.add([ticket])[0])
        try:
            await asyncio.wrap_future(added)
            while True:
                output = await inbox.get()
                yield output
                if output.finished:
                    return
        finally:
            # The request may come to be after its task was cancelled.
            added.add_done_callback(lambda done: jobs.put(lambda: _forget(session, done)))

    async def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Answers a conversation; `template` are the other options of `LLM.chat`."""
        prompt = await asyncio.to_thread(self._llm.chat_prompt, messages, tools=tools, **template)
        outputs = self.generate(prompt, sampling_params, request_id, priority=priority)
        async for output in outputs:
            yield output

    async def abort(self, request_id: str) -> None:
        """Ends a request, whose iterator then ends; an unknown id is fine."""
        session = self._llm._session
        await asyncio.wrap_future(self._run(lambda: session.abort(request_id)))

    async def configure(self, config: EngineConfig) -> None:
        """Replaces the engine's switches before the next step."""
        session = self._llm._session
        await asyncio.wrap_future(self._run(lambda: session.configure(config)))

    def counters(self) -> EngineCounters:
        """How the engine fares, now and since it was opened."""
        return self._llm.counters()

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises TokenizerError."""
        return self._llm.get_tokenizer()

    def close(self) -> None:
        """Ends all requests with an error and frees everything. May be called twice."""
        self._close()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    @staticmethod
    def _open(model: str | Path | Artifact, options: dict[str, Any]) -> LLM:
        return LLM(model, **options)

    def _run(self, job: Callable[[], Any]) -> Future[Any]:
        """Has the engine's thread do something between two steps."""
        done: Future[Any] = Future()

        def work() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(job())
                except BaseException as error:
                    done.set_exception(error)

        if not self._close.alive:
            raise UsageError("this model is closed", hint="Open it again with AsyncLLM(path).")
        self._jobs.put(work)
        return done


class _Inbox:
    """Outputs of one request on their way from the engine's thread to an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, kind: RequestOutputKind) -> None:
        self._loop = loop
        self._kind = kind
        self._items: deque[RequestOutput | Exception] = deque()
        self._news = asyncio.Event()

    def put(self, request: Request) -> None:
        """Takes what is new of a request; called in the thread that runs the step."""
        item: RequestOutput | Exception
        if request.error is not None:
            item = request.error
        elif self._kind is RequestOutputKind.FINAL_ONLY and not request.finished:
            return
        else:
            item = request.output(delta=self._kind is RequestOutputKind.DELTA)
        with suppress(RuntimeError):  # a loop that is closed: nobody reads
            self._loop.call_soon_threadsafe(self._take, item)

    async def get(self) -> RequestOutput:
        """The next output. Raises the error that ended the request."""
        while not self._items:
            self._news.clear()
            await self._news.wait()
        item = self._items.popleft()
        if isinstance(item, Exception):
            raise item
        return item

    def _take(self, item: RequestOutput | Exception) -> None:
        if self._kind is not RequestOutputKind.DELTA:
            self._items.clear()  # the later one has all that the earlier one has
        self._items.append(item)
        self._news.set()


def _forget(session: Session, added: Future[Any]) -> None:
    if not added.cancelled() and added.exception() is None:
        session.forget([added.result()])


def _serve(session: Session, jobs: SimpleQueue[Job | None]) -> None:
    """Does the jobs, and runs steps as long as there is a request. None ends it."""
    while True:
        try:
            job = jobs.get(block=not session.has_unfinished)
        except Empty:
            pass
        else:
            if job is None:
                return
            job()
            del job
            if not jobs.empty():  # all that have come before the next step
                continue
        try:
            session.step([])
        except Exception as error:
            session.fail_all(error)


def _stop(llm: LLM, jobs: SimpleQueue[Job | None], thread: threading.Thread) -> None:
    jobs.put(None)
    thread.join()
    llm._session.fail_all(UsageError("this model is closed"))
    llm.close()
    while not jobs.empty():  # whoever waits for them learns that it is closed
        job = jobs.get()
        if job is not None:
            job()
