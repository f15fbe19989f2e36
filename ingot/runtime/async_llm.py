"""`AsyncLLM`: the same model for asyncio, on the same engine thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

from ingot.runtime.claim import Claim
from ingot.runtime.config import EngineConfig, engine_config
from ingot.runtime.model import Model
from ingot.runtime.output import RequestOutput
from ingot.runtime.params import RequestOutputKind, SamplingParams
from ingot.runtime.prompts import Messages, Prompt, list_of_params
from ingot.runtime.request import Request
from ingot.runtime.vllm_arguments import CALLS, choose

T = TypeVar("T")

_TEMPLATE_OPTIONS = (
    "chat_template", "add_generation_prompt", "continue_final_message", "chat_template_kwargs",
)  # fmt: skip


class AsyncLLM(Model):
    """A model whose requests are async iterators; the options are those of `LLM`.

    Cancelling the task that reads a request, or leaving its loop early, aborts the request. An
    async context manager. Use it from one event loop or several.
    """

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        **vllm: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Completes a prompt; yields an output for every step, or fewer to a slow reader.

        `sampling_params.output_kind` says what an output holds. Raises RequestError for a prompt
        that cannot be served or a `request_id` that is in use, QueueFullError where the queue is
        full, and UsageError after `close`. `vllm` is as in `LLM.generate`.
        """
        choose(vllm, CALLS)
        params = list_of_params(sampling_params, 1, self.get_default_sampling_params)[0]
        inbox = _Inbox(asyncio.get_running_loop(), params.output_kind)
        ticket = await asyncio.to_thread(self._ticket, prompt, params, priority, request_id)
        with Claim(self._thread) as claim:
            await self._ask(claim.adding([ticket], inbox.put))
            while True:
                output = await inbox.get()
                yield output
                if output.finished:
                    return

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
        template = choose(template, CALLS, _TEMPLATE_OPTIONS).options
        if sampling_params is None:
            sampling_params = self.get_chat_sampling_params()
        prompt = await asyncio.to_thread(self.chat_prompt, messages, tools=tools, **template)
        outputs = self.generate(prompt, sampling_params, request_id, priority=priority)
        async for output in outputs:
            yield output

    async def abort(self, request_id: str) -> None:
        """Ends a request and its iterator. An unknown id does nothing."""
        await self._ask(partial(self._thread.session.abort, request_id))

    async def configure(self, config: EngineConfig) -> None:
        """Replaces the engine's switches before the next step."""
        await self._ask(partial(self._thread.session.configure, engine_config(config)))

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    async def _ask(self, work: Callable[[], T]) -> T:
        """Has the engine's thread do something between two steps."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._thread.call(work, partial(_call, loop, _settle, done))
        return await done


class _Inbox:
    """Outputs of one request on their way from the engine's thread to an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, kind: RequestOutputKind) -> None:
        self._loop = loop
        self._kind = kind
        self._items: deque[RequestOutput | Exception] = deque()
        self._news = asyncio.Event()

    def put(self, request: Request) -> None:
        """Takes what is new of a request; called in the engine's thread."""
        item: RequestOutput | Exception
        if request.error is not None:
            item = request.error
        elif self._kind is RequestOutputKind.FINAL_ONLY and not request.finished:
            return
        else:
            item = request.output(delta=self._kind is RequestOutputKind.DELTA)
        _call(self._loop, self._take, item)

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


def _settle(done: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    if done.cancelled():
        return
    if error is None:
        done.set_result(cast(T, result))
    else:
        done.set_exception(error)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    with suppress(RuntimeError):  # a loop that is closed: nobody waits
        loop.call_soon_threadsafe(function, *arguments)
