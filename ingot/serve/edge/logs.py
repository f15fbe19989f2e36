"""Logs: one line for each event, as text or JSON, that no client and no full disk can spoil."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from time import gmtime, strftime
from typing import Any

import msgspec

Records = SimpleQueue[Any]

LOGGER = "ingot"
_QUEUED = 10_000  # records that wait to be written; more are dropped
_MOST_TRACEBACK = 8_000
STOP_SECONDS = 2.0  # that the last records have to be written
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_PLAIN = re.compile(r"[^\s=\"\\]+")


def escaped(text: str, most: int) -> str:
    """A text without control characters, line ends or changes of direction, and not too long."""
    cut = text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], cut)


class _Formatter(logging.Formatter):
    """Base of both formats: the parts of a record as plain values."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def parts(self, record: logging.LogRecord) -> dict[str, Any]:
        """Fields of a record, escaped and cut, after its time, level and message."""
        fields = dict(getattr(record, "fields", {}))
        parts = {name: self._value(value) for name, value in fields.items() if value is not None}
        if record.exc_info:
            # The end of a traceback is what tells; its lines become one.
            end = self.formatException(record.exc_info)[-_MOST_TRACEBACK:]
            parts["traceback"] = escaped(end, _MOST_TRACEBACK)
        return parts

    def message(self, record: logging.LogRecord) -> str:
        return escaped(record.getMessage(), self._most)

    def time(self, record: logging.LogRecord) -> str:
        seconds = strftime("%Y-%m-%dT%H:%M:%S", gmtime(record.created))
        return f"{seconds}.{int(record.msecs):03d}Z"

    def _value(self, value: Any) -> Any:
        if isinstance(value, bool | int | float):
            return value
        return escaped(str(value), self._most)


class TextFormatter(_Formatter):
    """`TIME LEVEL message name=value ...`, with values in quotes where they need them."""

    def format(self, record: logging.LogRecord) -> str:
        parts = "".join(f" {name}={_quoted(v)}" for name, v in self.parts(record).items())
        return f"{self.time(record)} {record.levelname:<7} {self.message(record)}{parts}"


class JsonFormatter(_Formatter):
    """An object a line, with the keys time, level, logger, message and those of the event."""

    def format(self, record: logging.LogRecord) -> str:
        head = {
            "time": self.time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message(record),
        }
        return msgspec.json.encode({**self.parts(record), **head}).decode()


FORMATS: dict[str, type[_Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


class LineHandler(logging.Handler):
    """Writes each record to a file descriptor at once, and drops what cannot be written."""

    def __init__(self, fd: int, dropped: Callable[[], None]) -> None:
        super().__init__()
        self._fd = fd
        self._dropped = dropped

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = memoryview(f"{self.format(record)}\n".encode("utf-8", "backslashreplace"))
            while line:
                line = line[os.write(self._fd, line) :]
        except Exception:  # a full disk, a closed pipe: serving goes on
            self._dropped()


class _Queued(QueueHandler):
    """Hands records to the thread that writes them; never waits, and never raises."""

    queue: Records

    def __init__(self, records: Records, dropped: Callable[[], None]) -> None:
        super().__init__(records)
        self._dropped = dropped

    def enqueue(self, record: logging.LogRecord) -> None:
        if self.queue.qsize() < _QUEUED:
            self.queue.put(record)
        else:
            self._dropped()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # it stays in this process; the thread formats it

    def handleError(self, record: logging.LogRecord) -> None:
        self._dropped()


class _Writing(QueueListener):
    """Writer thread of the log. One that hangs, as in a pipe that nobody reads, is abandoned."""

    def stop(self) -> None:
        self.enqueue_sentinel()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            self._thread = None


@contextmanager
def logging_to(
    *,
    level: str = "info",
    format: str = "text",
    most: int = 2_000,
    fd: int | None = None,
    dropped: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Sends the logs of ingot to a file descriptor, by default stderr, inside the block.

    A thread writes them, so a disk or a pipe that is slow or full holds up no request. `dropped`
    is called for each record that is lost.
    """
    records: Records = SimpleQueue()
    writer = LineHandler(sys.stderr.fileno() if fd is None else fd, dropped)
    writer.setFormatter(FORMATS[format](most))
    handler = _Queued(records, dropped)
    listener = _Writing(records, writer)
    loggers = [logging.getLogger(name) for name in (LOGGER, "uvicorn.error")]
    before = [(log, log.level, log.propagate, log.handlers) for log in loggers]
    for log in loggers:
        log.handlers, log.propagate = [handler], False
    loggers[0].setLevel(level.upper())
    # What uvicorn warns of is what clients do wrong; that is counted, and answered.
    loggers[1].setLevel(logging.ERROR)
    listener.start()
    try:
        yield
    finally:
        for log, of, propagate, handlers in before:
            log.setLevel(of)
            log.propagate, log.handlers = propagate, handlers
        listener.stop()


def _quoted(value: Any) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else '"' + text.replace('"', '\\"') + '"'
