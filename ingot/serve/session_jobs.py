"""`SessionJobs`: the sessions of a served model, and the jobs that are about one.

They live beside the model, in its process, and end with it. Whose they are is told here as well: an
id that belongs to another key is as unknown as one that nobody has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic, time

from ingot.errors import (
    IngotError,
    InternalError,
    SessionLimitError,
    UnknownSessionError,
    describe,
)
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from ingot.runtime.sessions.session import Session
from ingot.runtime.subscription import Feed
from ingot.serve.engine import Job, Progress, SessionAsk, SessionFacts
from ingot.serve.settings import ModelSettings

AT_ONCE = 4  # jobs that are being checked; each is short
Tell = Callable[[int, Progress | IngotError], None]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Held:
    """A session, whose it is, and when it was last asked for anything."""

    session: Session
    owner: str
    salt: str
    created: int = field(default_factory=lambda: int(time()))
    used: float = field(default_factory=monotonic)


class SessionJobs:
    """Runs jobs of sessions, and tells what becomes of each, by its number. For several threads.

    `settings` bound how many there are, their bytes, and how long one is kept that nobody asks for.
    """

    def __init__(self, model: LLM, feed: Feed, settings: ModelSettings, tell: Tell) -> None:
        self._model, self._feed, self._settings, self._tell = model, feed, settings, tell
        self._held: dict[str, _Held] = {}
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(AT_ONCE, "ingot-sessions")
        self._asked: set[int] = set()

    def add(self, number: int, job: Job) -> None:
        """Runs a job under a number that was never used."""
        self._asked.add(number)
        self._threads.submit(self._run, number, job)

    def drop(self, number: int) -> None:
        """Aborts a job that has not ended."""
        self._asked.discard(number)

    def _run(self, number: int, job: Job) -> None:
        try:
            told = self._done(number, job)
        except IngotError as error:
            self._tell(number, error)
        except Exception as error:
            _log.exception("a job of a session failed")
            self._tell(number, InternalError(describe(error)))
        else:
            if told is not None:
                self._tell(number, Progress([], finished=True, session=told))
        finally:
            if number not in self._asked:  # its asker has left
                self._feed.drop(number)
            self._asked.discard(number)

    def _done(self, number: int, job: Job) -> SessionFacts | None:
        """What a job has made of its session; None of one that goes on and tells for itself."""
        ask = job.session
        assert ask is not None
        self._expire()
        match ask.do:
            case "open":
                salt = job.salt
                held = self._keep(ask, salt, lambda: self._model.open_session(cache_salt=salt))
            case "fork":
                source = self._find(ask.source, ask.owner)
                self._check_bytes(source.session.nbytes)
                held = self._keep(ask, source.salt, source.session.fork)
            case "look":
                held = self._find(ask.id, ask.owner)
            case "close":
                held = self._find(ask.id, ask.owner)
                with self._lock:
                    self._held.pop(ask.id, None)
                held.session.close()
            case _:
                self._go_on(number, job, self._find(ask.id, ask.owner))
                return None
        return self._facts(ask.id, held)

    def _go_on(self, number: int, job: Job, held: _Held) -> None:
        ask, session = job.session, held.session
        assert ask is not None
        params = SamplingParams(**job.params)
        is_first = bool(ask.first) and not session.num_tokens
        token_ids = ask.first if is_first else job.token_ids
        least = len(token_ids) + (0 if ask.whole else session.num_tokens)
        self._check_bytes(session.bytes_of(least) - session.nbytes)
        request = session.asked(
            token_ids, params, whole=ask.whole, priority=job.priority, prompt=job.prompt
        )
        self._feed.run(number, request, stream=job.stream)
        held.used = monotonic()

    def _keep(self, ask: SessionAsk, salt: str, make: Callable[[], Session]) -> _Held:
        most = self._settings.max_sessions
        if len(self._held) >= most:
            raise SessionLimitError(
                f"{len(self._held)} sessions are open, and {most} may be",
                hint="Delete one, or wait until one was idle for long enough.",
            )
        held = _Held(make(), ask.owner, salt)
        with self._lock:
            self._held[ask.id] = held
        return held

    def _find(self, session_id: str, owner: str) -> _Held:
        """Raises UnknownSessionError."""
        held = self._held.get(session_id)
        if held is None or held.owner != owner:
            raise UnknownSessionError(
                f"there is no session {session_id[:80]!r}",
                hint="It was deleted, was idle for too long, or ended with its engine. "
                "POST /v1/sessions makes one.",
            )
        held.used = monotonic()
        return held

    def _check_bytes(self, more: int) -> None:
        """Raises SessionLimitError where sessions have no room for so many more bytes."""
        most = self._settings.session_bytes
        if most is None:
            return
        with self._lock:
            known = [*self._held.values()]
        taken = sum(each.session.nbytes for each in known)
        if more > 0 and taken + more > most:
            raise SessionLimitError(
                f"sessions take {taken} bytes, and {more} more are over the limit of {most}",
                hint="Delete sessions, or make them shorter.",
            )

    def _expire(self) -> None:
        """Closes sessions that nobody has asked for anything for too long."""
        now, most = monotonic(), self._settings.session_idle
        if not most:
            return
        with self._lock:
            late = [
                session_id
                for session_id, held in self._held.items()
                if now - held.used > most and not held.session.is_busy
            ]
            gone = [self._held.pop(session_id) for session_id in late]
        for held in gone:
            held.session.close()

    def _facts(self, session_id: str, held: _Held) -> SessionFacts:
        session = held.session
        return SessionFacts(
            id=session_id,
            created=held.created,
            num_tokens=session.num_tokens,
            num_pending=len(session.pending),
            nbytes=session.nbytes,
            idle_seconds=self._settings.session_idle,
        )
