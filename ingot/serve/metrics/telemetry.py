"""`Telemetry`: what the server measures of its models, and how it tells it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter

from ingot.errors import IngotError
from ingot.runtime.metrics import EngineCounters
from ingot.serve.engine import ModelFacts
from ingot.serve.metrics.board import Board
from ingot.serve.metrics.engine_watch import EngineWatch
from ingot.serve.metrics.request_watch import ModelBoard, RequestWatch
from ingot.serve.registry.entries import ModelEvent
from ingot.version import __version__

logger = logging.getLogger("ingot.serve")

# Of the models that are loaded: what they are, and how their engines fare.
Poll = Callable[[], Awaitable[Mapping[str, tuple[ModelFacts, EngineCounters]]]]

_POLL_SECONDS = 1.0  # after which the answer of engines is not waited for any longer


async def no_engines() -> Mapping[str, tuple[ModelFacts, EngineCounters]]:
    return {}


class Telemetry:
    """Telemetry of a server and its models. It belongs to one event loop. `poll` asks the engines
    how they fare."""

    def __init__(
        self,
        poll: Poll = no_engines,
        *,
        compat: bool = False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.board = Board(compat)
        self._poll = poll
        self._clock = clock
        self._models: dict[str, ModelBoard] = {}
        self._engines: dict[str, EngineWatch] = {}
        self.board.number("build_info", __version__).value = 1

    def watch(self, model: str, began: float | None = None) -> RequestWatch:
        """Begins to follow a request that came at `began`, by `perf_counter`."""
        return RequestWatch(self.model(model), self._clock, began or self._clock())

    def model(self, name: str) -> ModelBoard:
        """The metrics of a model that requests change."""
        board = self._models.get(name)
        if board is None:
            board = self._models[name] = ModelBoard(self.board, name)
        return board

    async def refresh(self, waiting: Mapping[str, int]) -> None:
        """Asks the engines how they fare. `waiting` requests of a model wait for its engine.

        Engines that do not answer keep the numbers that they had.
        """
        try:
            # Not wait_for: before Python 3.12 it can swallow the cancellation that ends the server.
            async with asyncio.timeout(_POLL_SECONDS):
                answers = await self._poll()
        except (TimeoutError, IngotError):
            return
        for name, (facts, counters) in answers.items():
            engine = self._engines.get(name)
            if engine is None or engine.facts != facts:
                if engine is not None:
                    engine.forget()
                engine = self._engines[name] = EngineWatch(self.board, name, facts)
            engine.take(counters, waiting.get(name, 0))
        for name in self._engines.keys() - answers.keys():
            self._engines.pop(name).forget()

    def report(self, seconds: float) -> None:
        """Logs a line for each model that has worked since the last report."""
        for name, engine in self._engines.items():
            if line := engine.report(seconds):
                logger.info("load", extra={"fields": {"model": name, **line}})

    def judge(self) -> None:
        """Ends a window of time, and warns of models that have become slower."""
        for name, engine in self._engines.items():
            warning = engine.judge(self.model(name).between_tokens)
            if warning:
                logger.warning("slower than before", extra={"fields": {"model": name, **warning}})

    def note(self, event: ModelEvent) -> None:
        """Measures what happened to a model."""
        if event.seconds is not None:
            self.board.number("model_load_seconds", event.name).value = event.seconds
        if event.compile_seconds is not None:
            self.board.number("compile_seconds", event.name).value = event.compile_seconds
        if event.died:
            self.board.number("engine_restarts", event.name).add()
        if event.damaged:
            self.board.number("artifact_verify_failures", event.name).add()
