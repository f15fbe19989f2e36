"""Requests of a list are served together or not at all."""

from __future__ import annotations

from functools import partial
from weakref import ref

import pytest

from ingot.artifact.reader import Artifact
from ingot.errors import RequestError
from ingot.runtime.devices.cpu import CpuExecutor
from ingot.runtime.engine import Engine
from ingot.runtime.params import SamplingParams
from ingot.runtime.session import Session, Ticket
from tests.runtime.fake_model import PAGE_BYTES, VOCAB

PARAMS = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
NUM_PAGES = 60


class Owner:
    """Somebody who asked."""


@pytest.fixture
def session(fake_artifact):
    artifact = Artifact.open(fake_artifact)
    executor = CpuExecutor(artifact, max_model_len=40, kv_cache_bytes=NUM_PAGES * PAGE_BYTES)
    session = Session(partial(Engine, executor, max_model_len=40))
    yield session
    session.close()


def ticket(*token_ids: int, name: str | None = None) -> Ticket:
    return Ticket(
        prompt=None, token_ids=list(token_ids), params=PARAMS, tokenizer=None, request_id=name
    )


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_refused_request_takes_all_of_its_list_back(session, place):
    """Nothing runs, holds pages or keeps its name, wherever in the list it is."""
    owner = Owner()
    tickets = [ticket(1, 2, 3, name="a"), ticket(4, 5, name="b")]
    tickets.insert(place, ticket(VOCAB))
    with pytest.raises(RequestError, match=f"token {VOCAB}"):
        session.add(ref(owner), tickets, lambda request: None)
    assert not session.has_unfinished and session.engine.pages.num_free == NUM_PAGES
    added = session.add(ref(owner), [t for t in tickets if t.request_id], lambda request: None)
    while session.has_unfinished:
        session.step()
    assert [request.finished for request in added] == [True, True]
    assert [len(session.output(request).outputs[0].token_ids) for request in added] == [3, 3]
