"""A job whose replica is lost is computed once more, and its reader is told each token once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from ingot.errors import EngineDeadError, IngotError, RequestError
from ingot.serve.engine import Job, ModelFacts, Piece, Progress
from ingot.serve.isolated.messages import Fault
from ingot.serve.ray.wire import Description, Said, encode

pytestmark = pytest.mark.slow  # needs the extra `ray`

FACTS = ModelFacts(
    artifact_id="a",
    fingerprint="f",
    vocab_size=9,
    max_model_len=9,
    max_num_seqs=9,
    num_pages=9,
    page_size=9,
    architecture="x",
    created=1,
)
STEPS = [Progress([Piece(0, "a", [1])]), Progress([Piece(0, "b", [2], None, "stop")], True)]
JOB = Job(id="job-of-a-client", token_ids=[1, 2])


class Answer:
    """What a replica says, and what ends it."""

    def __init__(self, steps: Sequence[Progress], end: Exception | None) -> None:
        self.steps, self.end = steps, end
        self.cancelled = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in self.steps:
            yield encode(Said(step))
        if isinstance(self.end, IngotError):
            yield encode(Said(fault=Fault.of(self.end)))
        elif self.end is not None:
            raise self.end

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """Replicas, each with its answer."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = [*answers]
        self.ask, self.counters = self, None
        self.asked: list[bytes] = []

    def options(self, *, stream: bool) -> Handle:
        assert stream
        return self

    def remote(self, job: bytes, blocks: list[int]) -> Answer:
        self.asked.append(job)
        return self.answers[len(self.asked) - 1]


def ask(handle: Handle, job: Job = JOB) -> list[Progress]:
    from ingot.serve.ray.remote import RemoteEngine

    async def read() -> list[Progress]:
        return [
            progress async for progress in RemoteEngine(handle, Description(FACTS, {})).ask(job)
        ]

    return asyncio.run(read())


def died() -> Exception:
    from ray.exceptions import ActorDiedError

    return ActorDiedError()


@pytest.mark.parametrize("num_told", [0, 1])
def test_another_replica_goes_on_where_the_reader_is(num_told):
    handle = Handle(Answer(STEPS[:num_told], died()), Answer(STEPS, None))
    assert ask(handle) == STEPS
    assert all(answer.cancelled for answer in handle.answers)


def test_an_answer_that_ends_too_early_is_lost():
    assert ask(Handle(Answer(STEPS[:1], None), Answer(STEPS, None))) == STEPS


def test_both_are_asked_the_same_with_a_seed_if_there_was_none():
    handle = Handle(Answer([], died()), Answer(STEPS, None))
    ask(handle)
    first, second = (msgspec.msgpack.decode(job, type=Job) for job in handle.asked)
    assert first == second and first.params["seed"] >= 0
    for params in ({"seed": 7}, {"temperature": 0}):
        ask(handle := Handle(Answer(STEPS, None)), msgspec.structs.replace(JOB, params=params))
        assert msgspec.msgpack.decode(handle.asked[0], type=Job).params == params


def test_a_job_that_loses_two_replicas_is_lost():
    handle = Handle(Answer(STEPS[:1], died()), Answer([], died()))
    with pytest.raises(EngineDeadError, match="the replica that computed this was lost"):
        ask(handle)
    assert len(handle.asked) == 2


def test_a_replica_that_dies_after_its_last_word_loses_nothing():
    handle = Handle(Answer(STEPS, died()))
    assert ask(handle) == STEPS and len(handle.asked) == 1


def test_a_replica_that_continues_differently_ends_the_job():
    other = [Progress([Piece(0, "x", [3])])]
    with pytest.raises(EngineDeadError, match="continued differently"):
        ask(Handle(Answer(STEPS[:1], died()), Answer(other, None)))


def test_what_a_replica_refuses_is_not_asked_again():
    handle = Handle(Answer([], RequestError("no", hint="never")))
    with pytest.raises(RequestError, match="no\nnever"):
        ask(handle)
    assert len(handle.asked) == 1


def test_a_call_that_is_cancelled_is_not_lost():
    from ray.serve.exceptions import RequestCancelledError

    handle = Handle(Answer(STEPS[:1], RequestCancelledError("1")))
    with pytest.raises(asyncio.CancelledError):
        ask(handle)
    assert len(handle.asked) == 1


def test_a_reader_that_leaves_cancels_the_call():
    from ingot.serve.ray.remote import RemoteEngine

    answer = Answer(STEPS, None)

    async def read_one() -> None:
        async with aclosing(RemoteEngine(Handle(answer), Description(FACTS, {})).ask(JOB)) as steps:
            await anext(steps)
            assert not answer.cancelled
        assert answer.cancelled

    asyncio.run(read_one())


def test_the_router_offers_the_idlest_and_keeps_no_replica_that_has_gone():
    from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID

    from ingot.serve.ray.router import PrefixRouter

    class Replica(msgspec.Struct):
        replica_id: Any

    class Call(msgspec.Struct):
        args: list[Any]

    async def work() -> None:
        where = DeploymentID("m", "ingot")
        router = PrefixRouter(
            where, DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=False
        )
        router.initialize_state(more=1, times=1.0)
        ids = [ReplicaID(name, where) for name in "ab"]
        replicas = [Replica(each) for each in ids]
        call = Call([b"", [5]])

        async def offered() -> list[Any]:
            return [each.replica_id for (each,) in await router.choose_replicas(replicas, call)]

        first, second = await offered()
        router.on_send_request(first)
        assert await offered() == [first, second]  # which has the prefix
        router.on_send_request(first)
        assert await offered() == [second, first]  # which has too much to do now
        router.on_replica_actor_died(first)
        router.on_request_completed(first, "1")
        router.on_request_completed(first, "2")
        assert not router._running

    asyncio.run(work())
