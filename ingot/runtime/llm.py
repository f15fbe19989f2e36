"""`Model`: an artifact, opened. `LLM`: one that generates."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from ingot.artifact.reader import Artifact, Check
from ingot.errors import UsageError
from ingot.runtime.arrays import Float32
from ingot.runtime.claim import complete
from ingot.runtime.config import EngineConfig, engine_config
from ingot.runtime.devices import open_executor
from ingot.runtime.engine import Engine
from ingot.runtime.engine_thread import EngineThread
from ingot.runtime.metrics import EngineCounters
from ingot.runtime.output import RequestOutput
from ingot.runtime.params import SamplingParams
from ingot.runtime.prompts import (
    Messages,
    Prompt,
    integer_option,
    list_of_chats,
    list_of_params,
    list_of_priorities,
    list_of_prompts,
    list_of_tokens,
    prompt_parts,
)
from ingot.runtime.session import OnStep, Session, Ticket
from ingot.runtime.stream import TextStream
from ingot.runtime.tokenizer import Tokenizer, TokenizerFiles
from ingot.runtime.vllm_arguments import CALLS, choose


class Model:
    """What `LLM` and `AsyncLLM` have in common.

    Args:
        model: the folder of an artifact, or one that is open already.
        max_model_len: the most tokens of a sequence, prompt included; None: the artifact's limit.
        kv_cache_bytes: memory for keys and values; None: what full use can need, and at most half
            of the memory that is free.
        num_threads: None: one per processor that this process may use.
        seed: seeds the draws of requests that have no seed of their own.
        config: the engine's switches; `config` can be replaced at any time.
        on_step: a function that the engine's thread calls with the counters after every step. If
            it raises, that is logged, and it is not called again.
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
        config: EngineConfig | None = None,
        on_step: OnStep | None = None,
        check: Check = "fast",
    ) -> None:
        max_model_len = integer_option("max_model_len", max_model_len)
        kv_cache_bytes = integer_option("kv_cache_bytes", kv_cache_bytes)
        num_threads = integer_option("num_threads", num_threads)
        seed = integer_option("seed", seed) or 0
        if on_step is not None and not callable(on_step):
            raise UsageError(f"on_step is {on_step!r:.80}", hint="on_step is a function or None.")
        config = engine_config(config)  # before there are threads to end
        self.artifact = model if isinstance(model, Artifact) else Artifact.open(model, check)
        self.max_model_len = _model_len(self.artifact.manifest.limits.max_model_len, max_model_len)
        self._tokenizer_files = TokenizerFiles(self.artifact)
        executor = open_executor(
            self.artifact,
            max_model_len=self.max_model_len,
            kv_cache_bytes=kv_cache_bytes,
            num_threads=num_threads,
        )
        self._engine = Engine(
            executor,
            max_model_len=self.max_model_len,
            eos_token_ids=self.artifact.manifest.model.eos_token_ids,
            seed=seed,
            config=config,
        )
        self._thread = EngineThread(Session(self._engine, on_step))
        # Also runs when the object is forgotten and when Python exits, so that the threads of the
        # kernels are always joined.
        weakref.finalize(self, self._thread.close)

    def chat_prompt(
        self,
        messages: Messages,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """The prompt that `chat` makes of a conversation, for `generate` or `stream`."""
        tokenizer = self.get_tokenizer()
        text = tokenizer.apply_chat_template(messages, **options, **(chat_template_kwargs or {}))
        # The template writes the special tokens itself.
        ids = tokenizer.encode(text, add_special_tokens=False)
        return {"prompt": text, "prompt_token_ids": ids}

    def counters(self) -> EngineCounters:
        """How the engine fares, now and since it was opened."""
        counters = self._engine.counters
        return counters() if self._thread.is_current else self._thread.ask(counters)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer, parsed when first asked for. Raises TokenizerError."""
        return self._tokenizer_files.tokenizer

    def close(self) -> None:
        """Ends all requests with an error, and frees everything: threads, pages, the mapping of
        the weights. May be called twice."""
        self._thread.close()

    def _ticket(
        self, prompt: Prompt, params: SamplingParams, priority: int, request_id: str | None = None
    ) -> Ticket:
        """Checks a prompt and turns it into tokens. Raises RequestError."""
        text, token_ids, salt = prompt_parts(prompt)
        tokenizer = self.get_tokenizer() if token_ids is None or params.detokenize else None
        if token_ids is None:
            token_ids = self.get_tokenizer().encode(text or "")
        params = params.for_model(
            self.artifact.manifest.model.vocab_size,
            lambda text: self.get_tokenizer().encode(text, add_special_tokens=False),
        )
        self._engine.check(token_ids, params)
        return Ticket(
            prompt=text,
            token_ids=token_ids,
            params=params,
            tokenizer=tokenizer if params.detokenize else None,
            priority=priority,
            salt=salt,
            request_id=request_id,
        )


class LLM(Model):
    """A model, ready to generate; its options are those of `Model`.

    A context manager. Safe to use from several threads.
    """

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        priority: int | Sequence[int] | None = 0,
        **vllm: Any,
    ) -> list[RequestOutput]:
        """Completes every prompt; the outputs are in the order of the prompts.

        A prompt is a text, a list of tokens, {"prompt": text} or {"prompt_token_ids": tokens}. A
        dict may also have a "cache_salt": only prompts with the same salt share cached prefixes.
        `sampling_params` and `priority` are one for all prompts, or a list with one for each. A
        smaller priority comes sooner. `use_tqdm` shows the progress on stderr if that is a
        terminal. `vllm` are other arguments of vLLM, at values that change nothing, such as
        lora_request=None. Raises RequestError, with nothing run, if any prompt cannot be served.
        """
        _check_call(self.generate, vllm)
        items = list_of_prompts(prompts)
        params = list_of_params(sampling_params, len(items))
        priorities = list_of_priorities(priority, len(items))
        tickets = [self._ticket(*each) for each in zip(items, params, priorities, strict=True)]
        return complete(self._thread, tickets, progress=use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **vllm: Any,
    ) -> list[RequestOutput]:
        """Answers a conversation, or each of several, by the model's chat template."""
        _check_call(self.chat, vllm)
        items = [
            self.chat_prompt(
                chat,
                tools=tools,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                chat_template_kwargs=chat_template_kwargs,
            )
            for chat in list_of_chats(messages)
        ]
        return self.generate(items, sampling_params, use_tqdm)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
    ) -> TextStream:
        """Completes one prompt piece by piece; closing the stream early aborts the request."""
        params = list_of_params(sampling_params, 1)[0]
        return TextStream(self._thread, self._ticket(prompt, params, priority), self)

    def logits(self, token_ids: Sequence[int], *, chunk_tokens: int | None = None) -> Float32:
        """Logits at every position of one sequence: float32 [T, V].

        `chunk_tokens` is how many tokens a step computes. The bits do not depend on it.
        """
        tokens, session = list_of_tokens(token_ids), self._thread.session
        most = integer_option("chunk_tokens", chunk_tokens)
        return self._thread.ask(lambda: session.logits(tokens, most))

    @property
    def config(self) -> EngineConfig:
        """The engine's switches; a new one takes effect with the next step."""
        return self._engine.config

    @config.setter
    def config(self, config: EngineConfig) -> None:
        config, session = engine_config(config), self._thread.session
        change = partial(session.configure, config)
        (self._thread.post if self._thread.is_current else self._thread.ask)(change)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_call(method: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raises UsageError for other arguments of a call than vLLM's that change nothing."""
    choose(given, CALLS, known=signature(method).parameters if given else ())


def _model_len(limit: int, wanted: int | None) -> int:
    if wanted is not None and wanted > limit:
        raise UsageError(
            f"max_model_len is {wanted}; the artifact was compiled for {limit}",
            hint=f"Pass at most {limit}, or compile it again with --max-model-len {wanted}.",
        )
    return limit if wanted is None else wanted
