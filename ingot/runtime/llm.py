"""`LLM`: a model that generates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import signature
from itertools import chain
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from ingot.errors import RequestError, UsageError
from ingot.runtime.arrays import Float32
from ingot.runtime.config import EngineConfig, engine_config
from ingot.runtime.initial_record import InitialRecord, Records
from ingot.runtime.output import RequestOutput
from ingot.runtime.params import SamplingParams
from ingot.runtime.prompts import (
    Messages,
    Prompt,
    first_positions,
    integer_option,
    list_of_chats,
    list_of_params,
    list_of_priorities,
    list_of_prompts,
    list_of_tokens,
)
from ingot.runtime.request import Request
from ingot.runtime.sessions.session import Session, load
from ingot.runtime.sessions.streams import Streams
from ingot.runtime.subscription import TextStream, complete
from ingot.runtime.text_tasks import TextTasks
from ingot.runtime.vllm_arguments import CALLS, choose

if TYPE_CHECKING:
    from ingot.runtime.beam_search import BeamSearchOutput, BeamSearchParams

TunedState = str | Path | Records


class LLM(TextTasks):
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
        dict may also have a "cache_salt": only prompts with the same salt share cached prefixes;
        and "snapshot_at", a list of numbers of tokens: a recurrent model keeps its record after
        each of them, so that others go on from there. Of a model without records it does nothing.
        `sampling_params` and `priority` are one for all prompts, or a list with one for each.
        Without parameters, they are `get_default_sampling_params()`. A smaller priority comes
        sooner. `use_tqdm` shows the progress on stderr if that is a terminal. `vllm` are other
        arguments of vLLM, at values that change nothing, such as lora_request=None.

        Raises RequestError, with nothing run, if any prompt cannot be served.
        """
        _check_call(self.generate, vllm)
        items = list_of_prompts(prompts)
        params = list_of_params(sampling_params, len(items), self.get_default_sampling_params)
        priorities = list_of_priorities(priority, len(items))
        requests = [self._request(*each) for each in zip(items, params, priorities, strict=True)]
        return complete(self._thread, requests, progress=use_tqdm)

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
        **options: Any,
    ) -> list[RequestOutput]:
        """Answers a conversation, or each of several, by the model's chat template.

        Each completion tells its `reasoning`, `content` and `tool_calls` as a server does, beside
        the `text` that they were read from. Of the `options`, `max_thinking_tokens` is the most
        tokens of reasoning, after which the answer begins; strings of `stop` count behind it alone
        then. The others are those of vLLM, as in `generate`.

        `chat_template` is another one: the name of one that the model has, or a Jinja template.
        `chat_template_kwargs` are variables of it. Without parameters, they are
        `get_chat_sampling_params()`.

        Where the template ignores `tools`, they are described in the system message, or in the
        user's first where it takes none, and calls are read in the form that is asked for there.

        Raises RequestError, with nothing run, for a conversation that the template refuses, for
        tools that are not well formed, and for a bound of reasoning that it does not mark.
        """
        known = signature(self.chat).parameters
        most = choose(options, CALLS, ["max_thinking_tokens"], known=known).options
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
        params = list_of_params(sampling_params, len(items), self.get_chat_sampling_params)
        chats = [
            self.chat_outputs(prompt, each, tools, chat_template, **most)
            for prompt, each in zip(items, params, strict=True)
        ]
        outputs = self.generate(items, [chat.params for chat in chats], use_tqdm)
        return [chat.read(output) for chat, output in zip(chats, outputs, strict=True)]

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams, **vllm: Any
    ) -> list[BeamSearchOutput]:
        """The likeliest completions of every prompt that a beam search finds.

        `vllm` is as in `generate`. Raises RequestError, with nothing run, if any prompt cannot be
        served.
        """
        from ingot.runtime.beam_search import (
            BeamSearchOutput,
            BeamSearchParams,
            Search,
            run_to_ends,
        )

        _check_call(self.beam_search, vllm)
        if not isinstance(params, BeamSearchParams):
            raise RequestError(f"params is {params!r:.80}", hint="Give BeamSearchParams.")
        searches = [
            Search(
                self._request(prompt, params.step, 0),
                params,
                max_model_len=self.max_model_len,
                eos_token_ids=self.artifact.manifest.model.eos_token_ids,
            )
            for prompt in list_of_prompts(prompts)
        ]

        def run(requests: list[Request]) -> list[RequestOutput]:
            for each in requests:  # they have grown since their search began
                self._engine.check(each.token_ids, each.params)
            return complete(self._thread, requests, progress=False)

        found = run_to_ends(searches, run)
        for beam in chain.from_iterable(found):
            beam.text = self.get_tokenizer().decode(beam.tokens, skip_special_tokens=False)
        return [BeamSearchOutput(sequences=beams) for beams in found]

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
    ) -> TextStream:
        """Completes one prompt piece by piece; closing the stream early aborts the request."""
        params = list_of_params(sampling_params, 1, self.get_default_sampling_params)[0]
        return TextStream(self._thread, self._request(prompt, params, priority), self)

    def logits(
        self, token_ids: Sequence[int], *, chunk_tokens: int | None = None, first: int = 0
    ) -> Float32:
        """Logits at the positions of one sequence from `first` on: float32 [T - first, V].

        `chunk_tokens` is how many tokens a step computes. The bits do not depend on it.
        """
        (logits,) = self.batch_logits([token_ids], chunk_tokens=chunk_tokens, first=[first])
        return logits

    def batch_logits(
        self,
        sequences: Iterable[Sequence[int]],
        *,
        chunk_tokens: int | None = None,
        first: Sequence[int] | None = None,
    ) -> list[Float32]:
        """Computes `logits` of several sequences side by side, each with its own `first`. Raises
        UsageError for a `first` that is no position of its sequence."""
        tokens, requests = [list_of_tokens(each) for each in sequences], self._thread.requests
        most = integer_option("chunk_tokens", chunk_tokens)
        wanted = first_positions(first, tokens)
        left = Event()
        try:
            return self._thread.ask(lambda: requests.logits(tokens, most, left.is_set, wanted))
        finally:
            left.set()  # after Ctrl-C nobody waits for the steps that are left

    def open_session(
        self,
        given: str | Sequence[int] = (),
        *,
        seed: int | None = None,
        cache_salt: str = "",
        state: TunedState | None = None,
    ) -> Session:
        """A session that is fed a text or tokens, for more of them to come.

        `seed` is for the draws of its requests that have none of their own; None: one that only
        this session has. Sessions and prompts share cached prefixes only where their `cache_salt`
        is the same.

        Of a model that keeps records alone, `state` is the record before the first token: a file of
        a tuned state, or arrays by the names of the plan's states, where those left out are zeros.
        It counts as no token. Raises UsageError or CheckpointError for one of another model.
        """
        seed = None if seed is None else integer_option("seed", seed)
        initial = None if state is None else self._initial(state)
        work = self._thread.requests.engine.sessions
        session = Session(self, partial(work.open, cache_salt.encode(), seed, initial))
        try:
            session.feed(given)
        except BaseException:
            session.close()
            raise
        return session

    def load_session(self, path: str | Path, *, cache_salt: str = "") -> Session:
        """The session that `Session.save` has written, with all its states: nothing is computed.

        Raises StateFileError for a file that is damaged, or of another artifact.
        """
        return load(self, path, cache_salt.encode())

    def open_streams(
        self,
        count: int,
        *,
        seed: int | None = None,
        states: Sequence[TunedState | None] | None = None,
    ) -> Streams:
        """Sessions that advance together, step by step. `states` has one for each of them; see
        `open_session`."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UsageError(f"count is {count!r:.80}", hint="count is 1 or more.")
        given = [None] * count if states is None else [*states]
        if len(given) != count:
            raise UsageError(
                f"there are {len(given)} states for {count} streams", hint="Give one for each."
            )
        sessions: list[Session] = []
        try:
            for state in given:
                sessions.append(self.open_session(seed=seed, state=state))
        except BaseException:
            Streams(sessions).close()
            raise
        return Streams(sessions)

    def read_state(self, path: Path) -> Records:
        """The arrays of a file of a tuned state. Raises UsageError: an artifact knows no formats of
        checkpoints; `ingot.LLM` does."""
        raise UsageError(f"{path} is not read here", hint="Give arrays, or open an ingot.LLM.")

    def _initial(self, state: TunedState) -> InitialRecord:
        records = self.read_state(Path(state)) if isinstance(state, (str, Path)) else state
        return InitialRecord.of(records, self.artifact.plan_of(self.artifact.target))

    @property
    def config(self) -> EngineConfig:
        """The engine's switches; a new one takes effect with the next step."""
        return self._engine.config

    @config.setter
    def config(self, config: EngineConfig) -> None:
        config, requests = engine_config(config), self._thread.requests
        change = partial(requests.configure, config)
        (self._thread.post if self._thread.is_current else self._thread.ask)(change)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_call(method: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raises UsageError for other arguments of a call than vLLM's that change nothing."""
    choose(given, CALLS, known=signature(method).parameters if given else ())
