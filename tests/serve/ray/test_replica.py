"""A replica says what it cannot do, and ends where it can do nothing more."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from ingot.errors import ArtifactError, DeviceError, IngotError, QueueFullError
from ingot.serve.engine import Job, Progress
from ingot.serve.ray.arguments import ReplicaSettings
from ingot.serve.ray.replica import Replica
from ingot.serve.ray.wire import Said, decode_said, encode


class Failing:
    """An engine whose jobs fail."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def ask(self, job: Job) -> AsyncIterator[Progress]:
        raise self.error
        yield


class Ended(BaseException):
    """Instead of the end of this process."""


def said(error: Exception) -> list[Said]:
    replica = Replica.__new__(Replica)
    replica._engine = Failing(error)

    async def read() -> list[Said]:
        job = encode(Job(id="1", token_ids=[1]))
        return [decode_said(answer) async for answer in replica.ask(job, [])]

    return asyncio.run(read())


def test_without_its_artifact_it_does_not_start(tmp_path):
    with pytest.raises(ArtifactError, match=r"nothing\.ingot does not exist"):
        Replica(str(tmp_path / "nothing.ingot"), ReplicaSettings())


@pytest.mark.parametrize("error, kind", [(QueueFullError("full"), "QueueFullError"),
                                         (KeyError("x"), "InternalError")])  # fmt: skip
def test_an_error_of_a_job_is_said(error, kind):
    (only,) = said(error)
    assert only.fault.kind == kind


@pytest.mark.parametrize("error", [ArtifactError("weights.bin was cut"), DeviceError("lost")])
def test_what_breaks_its_engine_ends_it(error: IngotError, monkeypatch):
    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(Ended) as ended:
        said(error)
    assert ended.value.args == (error.exit_code,)
