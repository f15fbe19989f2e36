"""`AsyncLLM`: the same model for asyncio, on the same engine thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from ingot.runtime.config import EngineConfig, engine_config
from ingot.runtime.mailbox import Mailbox, call_in
from ingot.runtime.output import RequestOutput
from ingot.runtime.params import RequestOutputKind, SamplingParams
from ingot.runtime.prompts import Messages, Prompt, list_of_params
from ingot.runtime.request import Request
from ingot.runtime.subscription import Subscription
from ingot.runtime.text_outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingRequestOutput,
    RerankOutput,
    ScoringRequestOutput,
)
from ingot.runtime.text_tasks import TextTasks
from ingot.runtime.vllm_arguments import CALLS, choose

T = TypeVar("T")

_TEMPLATE_OPTIONS = (
    "chat_template", "add_generation_prompt", "continue_final_message", "chat_template_kwargs",
)  # fmt: skip


class AsyncLLM(TextTasks):
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
        kind = params.output_kind
        mailbox: Mailbox[RequestOutput] = Mailbox(
            asyncio.get_running_loop(), latest=kind is not RequestOutputKind.DELTA
        )
        request = await asyncio.to_thread(self._request, prompt, params, priority, request_id)
        with Subscription(self._thread) as subscription:
            await self._ask(subscription.adding([request], partial(_post, mailbox, kind)))
            while True:
                for output in await mailbox.get():
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
        max_thinking_tokens: int | None = None,
        **template: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Answers a conversation; `template` are the other options of `LLM.chat`.

        What is told of outputs that are deltas is new as well, and the calls come with the last.
        """
        template = choose(template, CALLS, _TEMPLATE_OPTIONS).options
        prompt = await asyncio.to_thread(self.chat_prompt, messages, tools=tools, **template)
        given = template.get("chat_template")
        params = list_of_params(sampling_params, 1, self.get_chat_sampling_params)[0]
        chat = self.chat_outputs(prompt, params, tools, given, max_thinking_tokens)
        outputs = self.generate(prompt, chat.params, request_id, priority=priority)
        async for output in outputs:
            yield chat.read(output)

    async def embed(  # type: ignore[override]
        self, *prompts: Any, **options: Any
    ) -> list[EmbeddingRequestOutput]:
        """As `LLM.embed`, beside the event loop."""
        return await asyncio.to_thread(partial(super().embed, *prompts, **options))

    async def encode(  # type: ignore[override]
        self, *prompts: Any, **options: Any
    ) -> list[PoolingRequestOutput]:
        """As `LLM.encode`, beside the event loop."""
        return await asyncio.to_thread(partial(super().encode, *prompts, **options))

    async def classify(  # type: ignore[override]
        self, *prompts: Any, **options: Any
    ) -> list[ClassificationRequestOutput]:
        """As `LLM.classify`, beside the event loop."""
        return await asyncio.to_thread(partial(super().classify, *prompts, **options))

    async def score(  # type: ignore[override]
        self, *texts: Any, **options: Any
    ) -> list[ScoringRequestOutput]:
        """As `LLM.score`, beside the event loop."""
        return await asyncio.to_thread(partial(super().score, *texts, **options))

    async def rerank(self, *texts: Any, **options: Any) -> list[RerankOutput]:  # type: ignore[override]
        """As `LLM.rerank`, beside the event loop."""
        return await asyncio.to_thread(partial(super().rerank, *texts, **options))

    async def abort(self, request_id: str) -> None:
        """Ends a request and its iterator. An unknown id does nothing."""
        await self._ask(partial(self._thread.requests.abort, request_id))

    async def configure(self, config: EngineConfig) -> None:
        """Replaces the engine's switches before the next step."""
        await self._ask(partial(self._thread.requests.configure, engine_config(config)))

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    async def _ask(self, work: Callable[[], T]) -> T:
        """Has the engine's thread do something between two steps."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._thread.call(work, partial(call_in, loop, _settle, done))
        return await done


def _post(mailbox: Mailbox[RequestOutput], kind: RequestOutputKind, request: Request) -> None:
    """Sends what is new of a request to its reader; called in the engine's thread."""
    if request.error is not None:
        mailbox.post(request.error)
    elif kind is not RequestOutputKind.FINAL_ONLY or request.finished:
        mailbox.post(request.output(delta=kind is RequestOutputKind.DELTA))


def _settle(done: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    if done.cancelled():
        return
    if error is None:
        done.set_result(cast(T, result))
    else:
        done.set_exception(error)
