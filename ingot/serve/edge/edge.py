"""`Edge`: a server around an application: who may ask, how much, and for how long."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from time import perf_counter
from typing import Any

import msgspec

from ingot.errors import UsageError
from ingot.serve.asked import Asked
from ingot.serve.edge.admission import Admission
from ingot.serve.edge.guard import METRICS, Answer, App, Guard
from ingot.serve.edge.keys import KeyRing
from ingot.serve.edge.listening import address_of, allow_many_files, bind
from ingot.serve.edge.logs import logging_to
from ingot.serve.edge.record import CURRENT, Record, cuttable
from ingot.serve.edge.server import DrainingServer, config_of, on_signals
from ingot.serve.edge.settings import EdgeSettings
from ingot.serve.metrics.speed import WINDOW_SECONDS
from ingot.serve.metrics.telemetry import Poll, Telemetry, no_engines
from ingot.serve.metrics.tracing import Tracer
from ingot.serve.refusal import Draining, QueueFull
from ingot.serve.requests.gate import Admitted
from ingot.version import __version__

logger = logging.getLogger("ingot.serve")

_BEAT_SECONDS = 0.25
_POLL_BEATS = 4  # the engines are asked once a second
_REPORT_SECONDS = 10.0
_TRACED = ("model", "prompt_tokens", "cached_tokens", "tokens", "first_token_ms", "finish")


class Edge:
    """Edge of an application: middleware before it, and telemetry beside it. It belongs to one
    event loop.

    The application's handlers call `enter` for each request that takes seats. `poll` asks the
    engines how they fare, and `address` tells where `serve` accepts connections. Raises UsageError
    for settings that contradict themselves, and for keys that cannot be read.
    """

    def __init__(self, settings: EdgeSettings | None = None, poll: Poll = no_engines) -> None:
        self.settings = settings or EdgeSettings()
        self.settings.check()
        self.keys = KeyRing(self.settings.key_file) if self.settings.key_file else None
        self.telemetry = Telemetry(poll, compat=self.settings.metrics_compat == "vllm")
        self.admission = Admission(self.settings.limits)
        self._tracer = Tracer() if self.settings.traces else None
        self.draining = False
        self.address = ""
        self._open: set[Record] = set()
        self._server: DrainingServer | None = None

    def wrap(self, app: App) -> Guard:
        """The application that a server is given: every request is checked before it gets on."""
        return Guard(app, self)

    @contextmanager
    def expect(self, asked: Asked) -> Iterator[None]:
        """Counts a request while its prompt is made inside the block. Raises QueueFull where it
        would be refused anyhow."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self.admission.expect(asked))
            except QueueFull as refusal:
                record = CURRENT.get()
                watch = self.telemetry.watch(
                    asked.model, record.began if record else perf_counter()
                )
                watch.fail(refusal.code)
                if record is not None:
                    record.fields |= {"model": asked.model, **watch.summary()}
                raise
            yield

    @asynccontextmanager
    async def enter(self, asked: Asked) -> AsyncIterator[Admitted]:
        """Waits for the first seats of a request, and holds them inside the block. Raises
        QueueFull, QueueTimeout, RequestTimeout and Draining.
        """
        record = CURRENT.get()
        began = record.began if record else perf_counter()
        entered = perf_counter()
        watch = self.telemetry.watch(asked.model, began)
        if self.settings.log_prompts:
            watch.keep_texts(asked)
        try:
            with watch.until_end(), cuttable():
                async with self.admission.enter(asked, entered - began) as seats:
                    watch.seated(perf_counter() - entered, asked)
                    yield Admitted(seats.take, watch.see)
        finally:
            if record is not None:
                record.fields |= {"model": asked.model, **watch.summary()}

    async def serve(self, app: App, on_ready: Callable[[], None] = lambda: None) -> int:
        """Binds, serves `app` until a signal asks for the end, and returns the exit code.

        `on_ready` is called when connections are accepted. SIGTERM and SIGINT drain, a second one
        ends at once, and SIGHUP reads the keys again.
        Raises UsageError for an address that cannot be used.
        """
        settings = self.settings
        allow_many_files()
        listener = bind(settings)
        self.address = address_of(listener, settings)
        server = self._server = self._around(app, on_ready)
        dropped = self.telemetry.board.number("log_records_dropped")
        with (
            logging_to(
                level=settings.log_level,
                format=settings.log_format,
                most=settings.max_log_len,
                dropped=dropped.add,
            ),
            on_signals({signal.SIGHUP: self._reload_keys}),
        ):
            try:
                async with self.beating():
                    await server.serve(sockets=[listener])
            finally:
                listener.close()
                if self._tracer is not None:
                    await asyncio.to_thread(self._tracer.close)
                if settings.uds is not None:
                    settings.uds.unlink(missing_ok=True)
            logger.info("ended", extra={"fields": {"exit_code": server.exit_code}})
        return server.exit_code

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Measures, asks the engines and reports inside the block, as `serve` does. For an
        application that another server runs."""
        beat = asyncio.ensure_future(self._beat())
        try:
            yield
        finally:
            beat.cancel()
            with suppress(asyncio.CancelledError):
                await beat

    def _around(self, app: App, on_ready: Callable[[], None]) -> DrainingServer:
        def ready() -> None:
            self._log_ready()
            on_ready()

        return DrainingServer(
            config_of(app, self.settings),
            self.settings.limits.shutdown_timeout,
            ready=ready,
            begin=self._drain,
            busy=lambda: self._num_awaited > 0,
            cut=self._cut,
        )

    def stop(self) -> None:
        """Asks the server to drain and end, as SIGTERM does."""
        if self._server is not None:
            self._server.stop()

    async def own_answer(self, path: str) -> Answer:
        """Answer of the server itself to a path: metrics, or details of its health."""
        if path == METRICS:
            await self.refresh()
            body, content_type = self.telemetry.board.exposition()
            return 200, body, content_type
        return 200, msgspec.json.encode(self.details()), "application/json"

    def details(self) -> dict[str, Any]:
        """The limits, and what waits and runs."""
        lines = {
            name: {"running": line.num_running, "waiting": line.num_waiting}
            for name, line in self.admission.lines.items()
        }
        return {
            "version": __version__,
            "draining": self.draining,
            "requests": len(self._open),
            "models": lines,
            "limits": asdict(self.settings.limits),
        }

    async def refresh(self) -> None:
        """Brings the metrics of the engines up to date."""
        waiting = {name: line.num_waiting for name, line in self.admission.lines.items()}
        await self.telemetry.refresh(waiting)

    def opened(self, record: Record) -> None:
        """Counts a request that is being answered."""
        self._open.add(record)
        self.telemetry.board.number("http_requests_in_flight").value = len(self._open)

    def closed(self, record: Record) -> None:
        """Counts a request that was answered, and how."""
        board = self.telemetry.board
        self._open.discard(record)
        board.number("http_requests_in_flight").value = len(self._open)
        board.number("http_responses", str(record.logged_status)).add()
        if record.error and "model" not in record.fields:
            board.number("requests_rejected", "", record.error).add()
        if self._tracer is not None and "model" in record.fields:
            self._trace(self._tracer, record)

    def _trace(self, tracer: Tracer, record: Record) -> None:
        fields = {name: record.fields.get(name) for name in _TRACED} | {"key": record.key or None}
        tracer.request(
            f"{record.method} {record.path}",
            record.elapsed,
            traceparent=record.traceparent,
            status=record.logged_status,
            error=record.error,
            fields=fields | {"id": record.request_id},
        )

    def _log_ready(self) -> None:
        logger.info("listening", extra={"fields": {"address": self.address}})
        if self.keys is None and not self.settings.is_local:
            logger.warning("no key is asked for, and other machines can reach this server")

    @property
    def _num_awaited(self) -> int:
        return sum(record.awaited for record in self._open)

    def _drain(self) -> None:
        self.draining = True
        seconds = self.settings.limits.shutdown_timeout
        fields = {"requests": self._num_awaited, "seconds": seconds}
        logger.info("draining", extra={"fields": fields})

    def _cut(self) -> None:
        logger.warning("cutting requests", extra={"fields": {"requests": self._num_awaited}})
        for record in self._open:
            if record.awaited:
                record.cut(Draining("the server ended before the answer did", retry_after=1))

    def _reload_keys(self) -> None:
        """Reads the keys again. Bad ones are logged, and change nothing."""
        if self.keys is None:
            return
        try:
            logger.info("keys read", extra={"fields": {"keys": self.keys.reload()}})
        except UsageError as error:
            logger.error("keys not read", extra={"fields": {"reason": str(error)}})

    async def _beat(self) -> None:
        """Measures how late the loop runs, asks the engines, and reports, until it is cancelled."""
        loop = asyncio.get_running_loop()
        lag = self.telemetry.board.histogram("event_loop_lag_seconds")
        reported = judged = loop.time()
        count = 0
        while True:
            due = loop.time() + _BEAT_SECONDS
            await asyncio.sleep(_BEAT_SECONDS)
            now = loop.time()
            lag.add(max(now - due, 0.0))
            count += 1
            if count % _POLL_BEATS == 0:
                await self.refresh()
            if now - reported >= _REPORT_SECONDS:
                self.telemetry.report(now - reported)
                reported = now
            if now - judged >= WINDOW_SECONDS:
                self.telemetry.judge()
                judged = now
