"""Requests of a list are served together or not at all."""

from __future__ import annotations

from functools import partial
from weakref import ref

import pytest

from ingot.artifact.reader import Artifact
from ingot.errors import RequestError
from ingot.runtime.devices.cpu import CpuExecutor
from ingot.runtime.engine import Engine
from ingot.runtime.engine_thread import Requests
from ingot.runtime.params import SamplingParams
from ingot.runtime.request import Request
from tests.runtime.fake_model import PAGE_BYTES

PARAMS = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
NUM_PAGES = 60


class Owner:
    """Somebody who asked."""


@pytest.fixture
def requests(fake_artifact):
    artifact = Artifact.open(fake_artifact)
    executor = CpuExecutor(artifact, max_model_len=40, kv_cache_bytes=NUM_PAGES * PAGE_BYTES)
    requests = Requests(partial(Engine, executor, max_model_len=40))
    yield requests
    requests.close()


class Broken:
    """A tokenizer that spells no token."""

    def detokenizer(self, *_):
        raise RequestError("no token has a text")


def request(*token_ids: int, name: str = "", tokenizer: Broken | None = None) -> Request:
    return Request(token_ids=list(token_ids), params=PARAMS, tokenizer=tokenizer, request_id=name)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_refused_request_takes_all_of_its_list_back(requests, place):
    """Nothing runs, holds pages or keeps its name, wherever in the list it is."""
    owner = Owner()
    good = [request(1, 2, 3, name="a"), request(4, 5, name="b")]
    given = [*good[:place], request(6, tokenizer=Broken()), *good[place:]]
    with pytest.raises(RequestError, match="no token has a text"):
        requests.add(ref(owner), given, lambda request: None)
    assert not requests.has_unfinished and requests.engine.pages.num_free == NUM_PAGES
    requests.add(ref(owner), good, lambda request: None)
    while requests.has_unfinished:
        requests.step()
    assert [each.finished for each in good] == [True, True]
    assert [len(requests.output(each).outputs[0].token_ids) for each in good] == [3, 3]


def test_a_name_that_is_made_up_is_none_that_a_caller_gave(requests):
    """Each request would be taken for the other."""
    owner = Owner()
    named, unnamed = [request(1, 2, name="0"), request(3, name="2")], [request(4), request(5)]
    heard: list[Request] = []
    requests.add(ref(owner), [*named, *unnamed], heard.append)
    assert len({each.request_id for each in (*named, *unnamed)}) == 4
    while requests.has_unfinished:
        requests.step()
    assert {id(each) for each in heard} == {id(each) for each in (*named, *unnamed)}
