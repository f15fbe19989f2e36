"""`Replica`: an engine as an actor of Ray."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, cast

import msgspec

from ingot.errors import ArtifactError, DeviceError, IngotError, InternalError, describe
from ingot.runtime.verify import replay_shortest
from ingot.serve.engine import Job
from ingot.serve.isolated.messages import Fault
from ingot.serve.local import LocalEngine
from ingot.serve.open_model import open_model
from ingot.serve.ray.wire import Description, Said, encode
from ingot.serve.settings import ModelSettings

_log = logging.getLogger(__name__)
# Weights that are not what they were, or a GPU that was lost: no later job would fare better.
BROKEN = (ArtifactError, DeviceError)
_decode_job = msgspec.msgpack.Decoder(Job).decode


class Replica:
    """One copy of a model. Ray starts it, and ends it by killing its process."""

    def __init__(self, path: str, settings: ModelSettings) -> None:
        model = open_model(path, settings)
        replay_shortest(model)
        self._engine = LocalEngine(model, settings)
        self._description = encode(Description.of(model.artifact, self._engine.facts))

    async def describe(self) -> bytes:
        """Description of the model for the front, encoded."""
        return self._description

    async def ask(self, job: bytes, blocks: Sequence[int]) -> AsyncIterator[bytes]:
        """Runs a job; ending the call aborts it. `blocks` are for the router alone.

        What breaks the engine ends the process: Ray starts another one, and the front asks that.
        """
        try:
            asked = self._engine.ask(_decode_job(job))
            async with aclosing(cast(Any, asked)) as steps:
                async for progress in steps:
                    yield encode(Said(progress))
        except BROKEN as error:
            _log.critical("the replica ends: %s", error)
            os._exit(error.exit_code)
        except IngotError as error:
            yield encode(Said(fault=Fault.of(error)))
        except Exception as error:
            _log.exception("a job failed")
            yield encode(Said(fault=Fault.of(InternalError(describe(error)))))

    async def counters(self) -> bytes:
        """Counters of the engine, encoded."""
        return encode(await self._engine.counters())

    async def check_health(self) -> None:
        """Asked by Ray every few seconds; where the engine hangs, Ray waits in vain."""
        await self._engine.counters()
