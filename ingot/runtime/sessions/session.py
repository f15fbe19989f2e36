"""`Session`: a sequence that stays, fed and asked piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, TypeVar
from weakref import ref

from ingot.errors import RequestError, SessionError
from ingot.files import as_path
from ingot.runtime.arrays import Float32
from ingot.runtime.output import RequestOutput
from ingot.runtime.params import SamplingParams
from ingot.runtime.prompts import list_of_params, list_of_tokens
from ingot.runtime.request import Request
from ingot.runtime.sessions.state import SessionState
from ingot.runtime.sessions.state_file import Belongs, StateFile
from ingot.runtime.subscription import TextStream, complete

if TYPE_CHECKING:
    from ingot.runtime.model import Model

T = TypeVar("T")
MakeState = Callable[[], SessionState]
_READ = SamplingParams(max_tokens=0, detokenize=False)  # nothing but the prompt


class Session:
    """Tokens that were fed and drawn, and their states in the engine. See `LLM.open_session`.

    It does one thing at a time: what is asked of it meanwhile raises SessionError. Many sessions
    run in the same steps, beside other requests. A session without a request rests: others take
    its place where memory is short, and its tokens are computed again when it goes on. No bit
    depends on that. A context manager.
    """

    def __init__(self, model: Model, make: MakeState) -> None:
        self._model, self._thread = model, model._thread
        # As for subscriptions: losing a session runs no Python code.
        self._key: ref[object] = ref(self, self._thread.inbox.put)
        self._state = self._thread.ask(partial(self._thread.requests.keep, self._key, make))

    @property
    def token_ids(self) -> list[int]:
        """All tokens that were fed, and those that were drawn and kept."""
        return [*self._state.token_ids]

    @property
    def pending(self) -> list[int]:
        """The last tokens, which are not in the states yet: they enter with the next step."""
        state = self._state
        return state.token_ids[state.num_common(state.token_ids) :]

    @property
    def num_tokens(self) -> int:
        return len(self._state.token_ids)

    @property
    def is_busy(self) -> bool:
        """True while it does something."""
        return self._state.turn.locked()

    @property
    def nbytes(self) -> int:
        """Bytes that its states take at most: of pages, the last one whole, and of a slot."""
        return self.bytes_of(self.num_tokens)

    def bytes_of(self, num_tokens: int) -> int:
        """Bytes that the states of so many tokens take at most."""
        plan = self._model.artifact.plan_of(self._model.artifact.target)
        num_pages = -(-num_tokens // plan.limits.page_size)
        return num_pages * sum(plan.page_sizes()) + plan.slot_bytes

    def feed(self, given: str | Sequence[int]) -> int:
        """Appends tokens, or those of a text; returns how many. All but the last are computed now.

        Only the first text gets the tokens that the model expects around a text. Feeding a, then b
        leaves the bits of feeding a + b. Raises RequestError, with nothing fed, where that is
        longer than `max_model_len`, and SessionError.
        """
        self._state.begin()
        request = None
        try:
            token_ids = self._tokens(given)
            request = self._reading(token_ids)
        finally:
            if request is None:
                self._state.done()
        if request is not None:
            with self._given(request):
                complete(self._thread, [request], progress=False)
        return len(token_ids)

    def generate(
        self,
        sampling_params: SamplingParams | None = None,
        *,
        keep_last: bool = True,
        priority: int = 0,
    ) -> RequestOutput:
        """Goes on from its tokens, and keeps those that it draws. The last one is pending; without
        `keep_last` it is dropped, as a stop token may have to be.

        Going on without feeding is as if it had never stopped: penalties count what was drawn since
        the last feed. Raises RequestError, SessionError, and what ended the request.
        """
        request = self._asked(sampling_params, priority, keep_last=keep_last)
        with self._given(request):
            (output,) = complete(self._thread, [request], progress=False)
        return output

    def stream(
        self,
        sampling_params: SamplingParams | None = None,
        *,
        keep_last: bool = True,
        priority: int = 0,
    ) -> TextStream:
        """As `generate`, piece by piece. A stream that is closed early ends the request: the tokens
        that were drawn until then stay."""
        request = self._asked(sampling_params, priority, keep_last=keep_last)
        with self._given(request):
            return TextStream(self._thread, request, self._model)

    def logits(self, token_ids: Sequence[int]) -> Float32:
        """Feeds tokens, one at least, and returns the logits after each: float32 [T, V].

        Nothing of them is pending: `generate` draws from the last logits. Raises RequestError and
        SessionError.
        """
        return logits([self], [token_ids])[0]

    def fork(self) -> Session:
        """A session of its own with the same tokens and states. It would draw what this one draws:
        parameters with another `seed` draw something else."""
        with self._turn():
            work = self._thread.requests.engine.sessions
            return Session(self._model, partial(work.fork, self._state))

    def save(self, path: str | Path) -> int:
        """Writes it into a state file, in one step, and returns its bytes. Raises SessionError,
        UsageError where nothing can be written, and ResourceError where the disk is full."""
        target, belongs = as_path(path), Belongs.to(self._model.artifact)
        with self._turn():
            return self._do(
                lambda: self._thread.requests.engine.sessions.save(self._state, target, belongs)
            )

    def close(self) -> None:
        """Frees what it holds; a request of it that runs goes on. May be called twice."""
        self._state.closed = True
        self._thread.inbox.put(self._key)

    def asked(
        self,
        token_ids: Sequence[int],
        params: SamplingParams,
        *,
        whole: bool = False,
        priority: int = 0,
        prompt: str | None = None,
    ) -> Request:
        """A request that feeds tokens and goes on, whose end gives the turn back. `whole`: they are
        all that the session is to begin with, and what it has in common with them is not computed
        again. Who cannot add it calls `Request.refused`. Raises RequestError and SessionError."""
        self._state.begin()
        try:
            tokens = [*([] if whole else self._state.token_ids), *token_ids]
            if not params.max_tokens and len(tokens) > 1:  # it is only fed
                tokens, self._state.coming = tokens[:-1], tokens[-1:]
            request = self._request(tokens, params, priority)
            request.prompt = prompt
            return request
        except BaseException:
            self._state.done()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _asked(
        self, sampling_params: SamplingParams | None, priority: int, *, keep_last: bool
    ) -> Request:
        defaults = self._model.get_default_sampling_params
        (params,) = list_of_params(sampling_params, 1, defaults)
        request = self.asked([], params, priority=priority)
        self._state.keeps_last = bool(keep_last)
        return request

    def _request(self, token_ids: list[int], params: SamplingParams, priority: int) -> Request:
        if params.n != 1 or params.prompt_logprobs is not None:
            raise RequestError(
                "a session has one completion, and scores no prompt",
                hint="Leave out n and prompt_logprobs; fork the session for several completions.",
            )
        if not token_ids:
            raise SessionError("the session has no tokens", hint="Feed it one at least.")
        prompt = {"prompt_token_ids": token_ids}
        request = self._model._request(prompt, params, priority)
        request.session, request.salt = self._state, self._state.salt
        return request

    def _reading(self, token_ids: list[int]) -> Request | None:
        """A request that computes all tokens but the last, with these behind; None where that is
        done. Raises RequestError."""
        state, tokens = self._state, [*self._state.token_ids, *token_ids]
        if not token_ids:
            return None
        self._check(tokens)
        if state.num_common(tokens) >= len(tokens) - 1:
            state.become(tokens)
            return None
        request = self._request(tokens[:-1], _READ, 0)
        state.coming = tokens[-1:]
        return request

    def _check(self, token_ids: list[int]) -> None:
        """Raises RequestError for tokens that can never be served."""
        most, fed = self._model.max_model_len, len(token_ids) - len(self._state.token_ids)
        if len(token_ids) > most:
            raise RequestError(
                f"the session has {len(self._state.token_ids)} tokens, and {fed} more are too many",
                hint=f"At most {most} fit, as max_model_len is {most}.",
            )
        self._model._engine.check(token_ids)

    def _tokens(self, given: str | Sequence[int]) -> list[int]:
        if isinstance(given, str):
            tokenizer = self._model.get_tokenizer()
            return tokenizer.encode(given, add_special_tokens=not self._state.token_ids)
        return list_of_tokens(given)

    def _do(self, work: Callable[[], T]) -> T:
        """Has the engine's thread do something between two steps."""
        requests = self._thread.requests

        def checked() -> T:
            requests.refuse_closed()
            return work()

        return self._thread.ask(checked)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        self._state.begin()
        try:
            yield
        finally:
            self._state.done()

    @contextmanager
    def _given(self, request: Request) -> Iterator[None]:
        """Gives the turn back where the request was not added."""
        try:
            yield
        finally:
            request.refused()


def logits(sessions: Sequence[Session], token_ids: Sequence[Sequence[int]]) -> list[Float32]:
    """Feeds sessions of one model side by side, each with tokens of its own; see `Session.logits`.

    One thing is done at a time by all of them.
    """
    if not sessions:
        return []
    given = [list_of_tokens(each) for each in token_ids]
    thread, left = sessions[0]._thread, Event()
    work = thread.requests.engine.sessions
    with ExitStack() as turns:
        for session, tokens in zip(sessions, given, strict=True):
            turns.enter_context(session._turn())
            if not tokens:
                raise RequestError("there are no tokens to feed", hint="Give one at least.")
            session._check([*session._state.token_ids, *tokens])
        fed = [(s._state, tokens) for s, tokens in zip(sessions, given, strict=True)]
        try:
            return sessions[0]._do(partial(work.logits, fed, left.is_set))
        finally:
            left.set()  # after Ctrl-C nobody waits for the steps that are left


def load(model: Model, path: str | Path, salt: bytes = b"") -> Session:
    """A session of a state file; see `LLM.load_session`."""
    with StateFile(as_path(path)) as file:
        Belongs.to(model.artifact).check(file.header.belongs, file.path)
        return Session(model, partial(model._thread.requests.engine.sessions.load, file, salt))
