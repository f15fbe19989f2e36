"""The engine process's own part, over a feed that is made up."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ingot.errors import ArtifactError, IngotError, InternalError, ResourceError
from ingot.serve.isolated import child
from ingot.serve.isolated.child import (
    SLOW_FIELDS,
    SMALL_TOKENS,
    EngineServer,
    Outbox,
    is_small,
)
from ingot.serve.isolated.frames import FrameReader
from ingot.serve.isolated.messages import Ask, Drop, FromEngine, Open, Refused
from ingot.serve.settings import ModelSettings
from tests.serve.jobs import job


class Feed:
    """Notes what it is asked for; `meanwhile` is called while a job is added."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def add(self, number: int, *_: Any, **__: Any) -> None:
        self.meanwhile()
        self.calls.append(("add", number))

    def drop(self, number: int) -> None:
        self.calls.append(("drop", number))


class Model:
    def __init__(self, feed: Feed) -> None:
        self.feed = lambda tell, seconds: feed
        self.artifact = SimpleNamespace(manifest=SimpleNamespace(encodes=False))
        self.texts = None


def test_a_job_whose_client_leaves_while_it_is_checked_runs_for_nobody() -> None:
    feed = Feed()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        server = EngineServer(Model(feed), ModelSettings(), Outbox(ours))  # type: ignore[arg-type]
        server.do(Ask(1, job([1])))
        feed.meanwhile = lambda: server.do(Drop(2))
        server.do(Ask(2, job([1])))
    assert feed.calls == [("add", 1), ("drop", 2), ("add", 2), ("drop", 2)]


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (MemoryError(), ResourceError("out of memory")),
        (ArtifactError("damaged", hint="Compile it again."), None),
        (KeyError("x"), InternalError("KeyError: 'x'")),
    ],
)
def test_a_model_that_cannot_be_opened_is_refused_with_the_reason(
    raised: Exception, told: IngotError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise raised

    monkeypatch.setattr(child, "open_model", fail)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        asked = Open("a.ingot", ModelSettings(), "fast")
        assert child._opened(asked, Outbox(ours)) is None
        (refused,) = FrameReader[FromEngine](FromEngine).feed(theirs.recv(1 << 16))
    assert isinstance(refused, Refused)
    found, wanted = refused.fault.error(), told or raised
    assert type(found) is type(wanted) and str(found) == str(wanted)


def test_what_takes_long_to_check_is_not_small() -> None:
    assert is_small(job([1] * SMALL_TOKENS)) and not is_small(job([1] * (SMALL_TOKENS + 1)))
    for name in SLOW_FIELDS:
        assert not is_small(job([1], {name: ["x"]}))
