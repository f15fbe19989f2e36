"""`LLM`: an artifact, opened and ready to generate."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ingot.artifact.reader import Artifact, Check
from ingot.errors import UsageError
from ingot.runtime.engine import Engine
from ingot.runtime.executor import Float32
from ingot.runtime.executor_cpu import CpuExecutor
from ingot.runtime.output import RequestOutput
from ingot.runtime.params import SamplingParams
from ingot.runtime.prompts import (
    Messages,
    Prompt,
    check_options,
    list_of_chats,
    list_of_params,
    list_of_prompts,
    list_of_tokens,
    prompt_parts,
)
from ingot.runtime.request import Request, TextStream
from ingot.runtime.tokenizer import Tokenizer


class LLM:
    """A model, ready to generate. A context manager; safe to use from several threads.

    Args:
        model: the folder of an artifact, or one that is open already.
        max_model_len: the most tokens of a sequence, prompt included; None: the artifact's limit.
        kv_cache_bytes: memory for keys and values; None: what full use can need, and at most half
            of the memory that is free.
        num_threads: None: one per processor that this process may use.
        seed: draws of requests without a seed of their own depend on it.
        check: "fast" hashes all files but the tensors, "full" these, too.

    Raises ArtifactError, IncompatibleHostError, ResourceError or UsageError.
    """

    def __init__(
        self,
        model: str | Path | Artifact,
        *,
        max_model_len: int | None = None,
        kv_cache_bytes: int | None = None,
        num_threads: int | None = None,
        seed: int = 0,
        check: Check = "fast",
    ) -> None:
        check_options(
            max_model_len=max_model_len,
            kv_cache_bytes=kv_cache_bytes,
            num_threads=num_threads,
            seed=seed,
        )
        self.artifact = model if isinstance(model, Artifact) else Artifact.open(model, check)
        self.max_model_len = _model_len(self.artifact.manifest.limits.max_model_len, max_model_len)
        executor = CpuExecutor(
            self.artifact,
            max_model_len=self.max_model_len,
            kv_cache_bytes=kv_cache_bytes,
            num_threads=num_threads,
        )
        # Also runs when the object is forgotten and when Python exits, so that the threads of the
        # kernels are always joined.
        self._close = weakref.finalize(self, executor.close)
        self._engine = Engine(
            executor,
            max_model_len=self.max_model_len,
            eos_token_ids=self.artifact.manifest.model.eos_token_ids,
            seed=seed,
        )
        # Whoever waits for a request runs steps for everyone; the lock is held for one step.
        self._lock = threading.Lock()
        self._requests: dict[int, Request] = {}
        self._lost: deque[Request] = deque()  # whose streams were dropped; aborted before a step
        self._tokenizer: Tokenizer | None = None

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Completes every prompt; the outputs are in the order of the prompts.

        A prompt is a text, a list of tokens, {"prompt": text} or {"prompt_token_ids": tokens}.
        One SamplingParams serves all prompts, a list has one for each. Raises RequestError, with
        nothing run, when any of them cannot be served.
        """
        items = list_of_prompts(prompts)
        requests = self._add(items, list_of_params(sampling_params, len(items)))
        try:
            while not all(request.finished for request in requests):
                self._step()
            return [request.output() for request in requests]
        finally:
            self._forget(requests)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers a conversation, or each of several, by the model's chat template."""
        tokenizer = self.get_tokenizer()
        items: list[Prompt] = []
        for chat in list_of_chats(messages):
            text = tokenizer.apply_chat_template(
                chat,
                tools=tools,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **(chat_template_kwargs or {}),
            )
            # The template writes the special tokens itself.
            ids = tokenizer.encode(text, add_special_tokens=False)
            items.append({"prompt": text, "prompt_token_ids": ids})
        return self.generate(items, sampling_params)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> TextStream:
        """Completes one prompt piece by piece; closing the stream early aborts the request."""
        params = list_of_params(sampling_params, 1)
        return TextStream(
            self._add([prompt], params)[0], self._step, self._forget, self._lost.append
        )

    def logits(self, token_ids: Sequence[int], *, chunk_tokens: int | None = None) -> Float32:
        """Logits at every position of one sequence: float32 [T, V].

        They are the same bits for every `chunk_tokens`, the tokens that a step computes.
        """
        with self._lock:
            self._refuse_closed()
            self._abort_lost()
            return self._engine.logits(list_of_tokens(token_ids), chunk_tokens)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer, read when first asked for. Raises TokenizerError."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.of(self.artifact)
        return self._tokenizer

    def close(self) -> None:
        """Frees everything: threads, pages, the mapping of the weights. May be called twice."""
        with self._lock:
            self._close()

    def _add(self, items: list[Prompt], params: list[SamplingParams]) -> list[Request]:
        """Checks every prompt, then adds them all."""
        ready = []
        for item, wanted in zip(items, params, strict=True):
            text, token_ids = prompt_parts(item)
            tokenizer = self.get_tokenizer() if token_ids is None or wanted.detokenize else None
            if token_ids is None:
                token_ids = self.get_tokenizer().encode(text or "")
            self._engine.check(token_ids, wanted)
            ready.append((text, token_ids, tokenizer if wanted.detokenize else None))
        with self._lock:
            self._refuse_closed()
            requests = []
            for (text, token_ids, tokenizer), wanted in zip(ready, params, strict=True):
                sequence = self._engine.add(token_ids, wanted)
                requests.append(Request(self._engine, sequence, text, tokenizer))
                self._requests[sequence.sequence_id] = requests[-1]
            return requests

    def _step(self) -> None:
        with self._lock:
            self._refuse_closed()
            self._abort_lost()
            for sequence in self._engine.step():
                self._requests[sequence.sequence_id].advance()

    def _forget(self, requests: list[Request]) -> None:
        """Aborts those that are not finished, and lets go of all of them."""
        with self._lock:
            for request in requests:
                request.abort()
                self._requests.pop(request.sequence.sequence_id, None)

    def _abort_lost(self) -> None:
        while self._lost:
            request = self._lost.popleft()
            request.abort()
            self._requests.pop(request.sequence.sequence_id, None)

    def _refuse_closed(self) -> None:
        if not self._close.alive:
            raise UsageError("this model is closed", hint="Open it again with LLM(path).")

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _model_len(limit: int, wanted: int | None) -> int:
    if wanted is not None and wanted > limit:
        raise UsageError(
            f"max_model_len is {wanted}; the artifact was compiled for {limit}",
            hint=f"Pass at most {limit}, or compile it again with --max-model-len {wanted}.",
        )
    return limit if wanted is None else wanted
