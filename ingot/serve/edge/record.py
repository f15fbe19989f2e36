"""`Record`: what is known of a request while it is answered, and logged when it is over."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from ingot.runtime.unique import unique_id
from ingot.serve.refusal import Refusal

_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(slots=True, eq=False)
class Record:
    """A request: whose it is, which one it is, and how it was answered.

    `began` is by `perf_counter`. `admin` says whether it may administer, and `anonymous` that it
    came without a key where others have one. `fields` are what else its line of the log says, and
    `task` answers it. A server that drains waits for it if it is `awaited`; a stream that stays
    open for further requests is not.
    """

    method: str
    path: str
    request_id: str
    traceparent: str | None = None
    key: str = ""
    admin: bool = False
    anonymous: bool = False
    began: float = field(default_factory=perf_counter)
    status: int = 0
    complete: bool = False
    disconnected: bool = False
    error: str | None = None
    awaited: bool = True
    fields: dict[str, Any] = field(default_factory=dict)
    task: asyncio.Task[Any] | None = None
    reason: Refusal | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since it came."""
        return perf_counter() - self.began

    @property
    def logged_status(self) -> int:
        """The status for the log: 499 where the client left before the end of the answer."""
        return 499 if self.disconnected and not self.complete else self.status

    def cut(self, reason: Refusal) -> None:
        """Ends the request with an error, whatever it waits for; once."""
        if self.reason is None and self.task is not None:
            self.reason = reason
            self.task.cancel()


# The request that the running task answers. Handlers know it without being told.
CURRENT: ContextVar[Record | None] = ContextVar("record", default=None)


@contextmanager
def cuttable() -> Iterator[None]:
    """Raises the reason of `Record.cut` where it cancels the request inside the block."""
    record, task = CURRENT.get(), asyncio.current_task()
    try:
        yield
    except asyncio.CancelledError:
        if record is None or record.reason is None or task is not record.task or task is None:
            raise
        task.uncancel()
        raise record.reason from None


def plain_path(path: str) -> str:
    """A path without slashes at its end: clients that join addresses send them."""
    return path.rstrip("/") or "/"


def request_id_of(given: bytes) -> str:
    """The id that a client gives its request; one that is no name is replaced."""
    return given.decode() if _ID.fullmatch(given) else f"req-{unique_id()}"


def record_of(scope: Any) -> Record:
    """The record of a new request. An X-Request-Id that is no name is replaced."""
    request_id, traceparent = "", None
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            request_id = request_id_of(value)
        elif name == b"traceparent" and _TRACEPARENT.fullmatch(value):
            traceparent = value.decode()
    return Record(
        method=scope["method"],
        path=scope["path"],
        request_id=request_id or request_id_of(b""),
        traceparent=traceparent,
    )
