"""`Model`: an artifact, opened."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from threading import Event
from typing import Any, cast

from ingot.artifact.pooler import DOES, Task
from ingot.artifact.reader import Artifact
from ingot.errors import UsageError
from ingot.runtime.answers import check_tools, tokenizer_style
from ingot.runtime.answers.described import described_style, rendered
from ingot.runtime.answers.outputs import ChatOutputs
from ingot.runtime.config import EngineConfig, engine_config
from ingot.runtime.devices import open_executor
from ingot.runtime.embedding import PagedTexts, PooledRows, RunsTexts
from ingot.runtime.encoder import TextEncoder
from ingot.runtime.engine import Engine
from ingot.runtime.executor import Executor
from ingot.runtime.generation_config import Source, read_generation_config
from ingot.runtime.marks import Marks, encode_marked, without_marks
from ingot.runtime.metrics import EngineCounters
from ingot.runtime.params import SamplingParams
from ingot.runtime.progress import end_progress, show_progress
from ingot.runtime.prompts import Messages, Prompt, integer_option, prompt_parts
from ingot.runtime.request import Request, check_priority
from ingot.runtime.session import EngineThread, OnStep, Session
from ingot.runtime.structured.compiler import GrammarCompiler
from ingot.runtime.subscription import Feed, Tell
from ingot.runtime.template_variables import check_variables
from ingot.runtime.tokenizer import Tokenizer
from ingot.runtime.tokenizer_files import TokenizerFiles
from ingot.runtime.vllm_methods import Refusals


class Model(Refusals):
    """Base of `LLM` and `AsyncLLM`: an open artifact, its engine and its tokenizer.

    Args:
        model: the folder of an artifact, or one that is open already. Opening a folder hashes all
            files but the tensors; `ingot.Artifact.open(folder, "full")` hashes these, too.
        max_model_len: the most tokens of a sequence, prompt included; None: the artifact's limit.
        kv_cache_bytes: memory for keys and values; None: what full use can need, and at most half
            of the memory that is free.
        num_threads: the most threads of a step; None: one per usable processor.
        seed: seeds the draws of requests that have no seed of their own.
        config: the engine's switches; `config` can be replaced at any time.
        on_step: a function that the engine's thread calls with the counters after every step. If
            it raises, that is logged, and it is not called again.
        generation_config: where requests without parameters get theirs: "auto", from the model's
            generation_config.json; "vllm", from `SamplingParams()` alone.

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
        generation_config: Source = "auto",
    ) -> None:
        max_model_len = integer_option("max_model_len", max_model_len)
        kv_cache_bytes = integer_option("kv_cache_bytes", kv_cache_bytes)
        num_threads = integer_option("num_threads", num_threads)
        seed = integer_option("seed", seed) or 0
        if on_step is not None and not callable(on_step):
            raise UsageError(f"on_step is {on_step!r:.80}", hint="on_step is a function or None.")
        config = engine_config(config)  # before there are threads to end
        self.artifact = model if isinstance(model, Artifact) else Artifact.open(model)
        self.max_model_len = _model_len(self.artifact.manifest.limits.max_model_len, max_model_len)
        self._tokenizer_files = TokenizerFiles(self.artifact)
        self._defaults = read_generation_config(self.artifact, generation_config)
        self._encoder: TextEncoder | None = None
        if self.artifact.manifest.encodes:
            self._read_texts(num_threads)
            return
        executor = open_executor(
            self.artifact,
            max_model_len=self.max_model_len,
            kv_cache_bytes=kv_cache_bytes,
            num_threads=num_threads,
        )
        session = self._session(executor, seed, config, on_step)
        self._engine, self._thread = session.engine, EngineThread(session)
        # Runs at Python's exit, too, so that the threads of the kernels are always joined.
        weakref.finalize(self, self._thread.close)

    def _read_texts(self, num_threads: int | None) -> None:
        """Opens a model of whole texts, which has no engine."""
        self._encoder = TextEncoder(self.artifact, num_threads=num_threads)
        self.max_model_len = min(self.max_model_len, self._encoder.longest)
        self._engine = self._thread = cast(Any, NoEngine(self.artifact, self._encoder.close))
        weakref.finalize(self, self._encoder.close)

    @property
    def texts(self) -> RunsTexts | None:
        """What gives a row for each text; None of a model that was not made for it."""
        pooler = self.artifact.manifest.pooler
        if self._encoder is not None:
            return self._encoder
        return None if pooler is None else PagedTexts(self, pooler)

    def _session(
        self, executor: Executor, seed: int, config: EngineConfig, on_step: OnStep | None
    ) -> Session:
        make_engine = partial(
            Engine,
            executor,
            known_tokens=self.artifact.manifest.model.vocab_size,
            max_model_len=self.max_model_len,
            eos_token_ids=self.artifact.manifest.model.eos_token_ids,
            seed=seed,
            config=config,
        )
        try:
            return Session(make_engine, on_step)
        except BaseException:  # switches that the executor cannot have
            executor.close()
            raise

    def chat_prompt(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """The prompt that `chat` makes of a conversation, for `generate` or `stream`.

        What messages and tools say becomes no special token: only the template writes those.
        Raises RequestError as `chat` does.
        """
        tokenizer, given = self.get_tokenizer(), chat_template_kwargs or {}
        check_variables(given)
        check_tools(tools or None, None)
        marks = Marks(tokenizer.special_spellings, (messages, tools, given))
        render = partial(tokenizer.apply_chat_template, **options, **marks.marked(given))
        template = tokenizer.template(options.get("chat_template"), with_tools=True)
        text = rendered(render, marks.marked(messages), marks.marked(tools), template=template)
        # The template writes the special tokens itself.
        ids = encode_marked(tokenizer, text, marks.mark)
        return {"prompt": without_marks(text, marks.mark), "prompt_token_ids": ids}

    def chat_outputs(
        self,
        prompt: Mapping[str, Any],
        params: SamplingParams,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        max_thinking_tokens: int | None = None,
    ) -> ChatOutputs:
        """What reads the outputs of a chat, whose prompt `chat_prompt` made of the same arguments.
        Its `params` are those to generate with. Raises RequestError as `chat` does."""
        tokenizer = self.get_tokenizer()
        own = tokenizer_style(tokenizer, chat_template)
        style = described_style(own, prompt["prompt"], tools)
        return ChatOutputs(style, prompt, tools, params, tokenizer, max_thinking_tokens)

    def counters(self) -> EngineCounters:
        """Counters of the engine, now and since it was opened."""
        if self._encoder is not None:
            return self._encoder.counters()
        counters = self._engine.counters
        return counters() if self._thread.is_current else self._thread.ask(counters)

    def feed(self, tell: Tell, interval: float = 0.0) -> Feed:
        """A way to ask for many requests at once, which hands on their news by `tell`; what lies
        between first tokens and ends may wait for `interval` seconds."""
        return Feed(self._thread, self._request, tell, interval)

    def run_pools(
        self,
        program: str,
        tokens: list[list[int]],
        pools: list[PooledRows],
        *,
        chunk_tokens: int | None = None,
        progress: bool = False,
    ) -> None:
        """Pools what a program returns, of as many prompts at once as a step has room for: between
        them the requests of other threads go on."""
        session, left = self._thread.session, Event()
        most = self.artifact.manifest.limits.max_num_seqs
        try:
            for begin in range(0, len(tokens), most):
                part = slice(begin, begin + most)
                first, takes = zip(*((each.first, each.take) for each in pools[part]), strict=True)
                of_part = tokens[part], [*first], [*takes], chunk_tokens, left.is_set
                self._thread.ask(partial(session.rows, program, *of_part))
                if progress:
                    show_progress(f"{begin + len(takes)}/{len(tokens)} prompts")
        finally:
            left.set()  # after Ctrl-C nobody waits for the steps that are left
            if progress and tokens:
                end_progress()

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer, parsed when first asked for. Raises TokenizerError."""
        return self._tokenizer_files.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Default parameters of a request: vLLM's, with those of the model's
        generation_config.json. Raises ArtifactError where that file has a value out of range."""
        return self._defaults.sampling_params()

    def get_chat_sampling_params(self) -> SamplingParams:
        """Default parameters of a chat, as on the command line and from a server: the sampling of
        the model's generation_config.json, or else the usual one, and no bound on new tokens but
        the context. Raises as `get_default_sampling_params` does."""
        return self._defaults.chat_params()

    def close(self) -> None:
        """Ends all requests with an error, and frees everything: threads, pages, the mapping of
        the weights. May be called twice."""
        self._thread.close()

    @cached_property
    def _grammars(self) -> GrammarCompiler:
        files, model = self._tokenizer_files, self.artifact.manifest.model
        return GrammarCompiler(lambda: files.tokenizer, model.vocab_size, model.eos_token_ids)

    def _request(
        self, prompt: Prompt, params: SamplingParams, priority: int, request_id: str | None = None
    ) -> Request:
        """Checks all that is asked, once, and turns the prompt into tokens. Raises RequestError."""
        text, token_ids, salt = prompt_parts(prompt)
        tokenizer = self.get_tokenizer() if token_ids is None or params.detokenize else None
        if token_ids is None:
            token_ids = self.get_tokenizer().encode(text or "")
        params = params.for_model(
            self.artifact.manifest.model.vocab_size,
            lambda text: self.get_tokenizer().encode(text, add_special_tokens=False),
            self._grammars.compile,
            lambda token_ids: self.get_tokenizer().decode(token_ids, skip_special_tokens=False),
        )
        self._engine.check(token_ids, params)
        return Request(
            prompt=text,
            token_ids=token_ids,
            params=params,
            tokenizer=tokenizer if params.detokenize else None,
            priority=check_priority(priority),
            salt=salt,
            request_id=request_id or "",
        )


CALLS: Mapping[Task, str] = {
    "embed": "embed()",
    "token_embed": "encode(), score() or rerank()",
    "classify": "classify(), score() or rerank()",
    "token_classify": "encode()",
}


class NoEngine:
    """Stands where a model that generates has its engine: whatever is asked of it is an error."""

    def __init__(self, artifact: Artifact, close: Callable[[], None]) -> None:
        self._artifact, self.close = artifact, close

    def __getattr__(self, name: str) -> Any:
        pooler = self._artifact.manifest.pooler
        task = pooler.task if pooler else "embed"
        raise UsageError(
            f"{self._artifact.path} {DOES[task]}, and generates none",
            hint=f"Ask for {CALLS[task]}.",
        )


def _model_len(limit: int, wanted: int | None) -> int:
    if wanted is not None and wanted > limit:
        raise UsageError(
            f"max_model_len is {wanted}; the artifact was compiled for {limit}",
            hint=f"Pass at most {limit}, or compile it again with --max-model-len {wanted}.",
        )
    return limit if wanted is None else wanted
