"""The engine process: opens a model, runs the jobs that its front sends, and ends with it.

The main thread reads and checks small jobs, threads of a pool check others, and the engine's thread
answers. So an abort is never behind a job that takes long to check, a small job waits for no other
thread, and what a step did is on its way before the next.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import socket
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import NoReturn

from ingot.errors import (
    ArtifactError,
    IngotError,
    InternalError,
    ProtocolError,
    RequestError,
    ResourceError,
    describe,
)
from ingot.runtime.llm import LLM
from ingot.runtime.subscription import Feed, News
from ingot.runtime.verify import replay_shortest
from ingot.serve.engine import Job, Progress
from ingot.serve.garbage import search_rarely
from ingot.serve.isolated.frames import FrameReader, FrameWriter
from ingot.serve.isolated.messages import (
    Ask,
    Drop,
    Fault,
    Logged,
    Open,
    Ping,
    Pong,
    Ready,
    Refused,
    ToEngine,
    Told,
    encodable,
)
from ingot.serve.isolated.spawn import tie_to_parent
from ingot.serve.open_model import open_model
from ingot.serve.progress import add_job, facts_of, told
from ingot.serve.session_jobs import SessionJobs
from ingot.serve.settings import ModelSettings
from ingot.serve.text_jobs import TextJobs

CHECKERS = 4  # threads that check jobs: as many may take long before others have to wait
READ_BYTES = 1 << 18
SMALL_TOKENS = 1024  # of a prompt that is checked in less time than another thread takes to wake
SLOW_FIELDS = ("bad_words", "structured_outputs")  # need the tokenizer, or a grammar


def is_small(job: Job) -> bool:
    """Returns whether a job is checked in next to no time."""
    slow = any(name in job.params for name in SLOW_FIELDS)
    return len(job.token_ids) <= SMALL_TOKENS and not slow


class Outbox:
    """Sends messages from any thread, each whole."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._writer = FrameWriter()
        self._lock = Lock()

    def send(self, message: object) -> None:
        """Waits while the front does not read. Does nothing once it is gone."""
        with self._lock, suppress(OSError):  # the main thread sees the end, too
            self._connection.sendall(self._writer.frame(message))


class EngineServer:
    """Runs jobs on an open model and sends what becomes of them."""

    def __init__(self, model: LLM, settings: ModelSettings, outbox: Outbox) -> None:
        self._outbox = outbox
        self._model = model
        self._feed: Feed | None = None
        if not model.artifact.manifest.encodes:
            self._feed = model.feed(self._tell, settings.stream_interval)
        self._texts = TextJobs(model.texts, self._tell_one) if model.texts else None
        self._sessions: SessionJobs | None = None
        if self._feed:
            self._sessions = SessionJobs(model, self._feed, settings, self._tell_one)
        self._checkers = ThreadPoolExecutor(CHECKERS, "ingot-check")
        self._asked: set[int] = set()  # jobs that have neither ended nor been dropped

    def do(self, message: ToEngine) -> None:
        """Begins what a message asks for. Raises ProtocolError."""
        match message:
            case Ask(number, job) if job.texts and self._texts:
                self._texts.add(number, job)
            case Ask(number, job) if job.texts or self._feed is None:
                self._send([], [(number, Fault.of(_other_task(reads=bool(job.texts))))])
            case Ask(number, job) if job.session and self._sessions:
                self._sessions.add(number, job)
            case Ask():
                self._asked.add(message.number)
                if is_small(message.job):
                    self._add(message)
                else:
                    self._checkers.submit(self._add, message)
            case Drop(number):
                self._asked.discard(number)
                if self._feed:
                    self._feed.drop(number)
                for jobs in (self._texts, self._sessions):
                    if jobs:
                        jobs.drop(number)
            case Ping(number) if self._feed:
                self._feed.count(lambda counters: self._outbox.send(Pong(number, counters)))
            case Ping(number):
                self._outbox.send(Pong(number, self._model.counters()))
            case _:
                raise ProtocolError(f"a second {type(message).__name__}")

    def _add(self, ask: Ask) -> None:
        assert self._feed is not None, "others are refused before"
        job, number = ask.job, ask.number
        try:
            add_job(self._feed, number, job)
        except IngotError as error:
            self._send([], [(number, Fault.of(error))])
        except Exception as error:
            logging.getLogger(__name__).exception("a job cannot be checked")
            self._send([], [(number, Fault.of(InternalError(describe(error))))])
        if number not in self._asked:  # dropped while it was checked
            self._feed.drop(number)

    def _tell_one(self, number: int, told: Progress | IngotError) -> None:
        """Sends what has become of a job. In any thread."""
        if isinstance(told, ArtifactError):
            self._end(told)
        if isinstance(told, Progress):
            self._send([(number, told)], [])
        else:
            self._send([], [(number, Fault.of(told))])

    def _tell(self, news: News) -> None:
        """Sends what a step did. In the engine's thread."""
        progress: list[tuple[int, Progress]] = []
        faults: list[tuple[int, Fault]] = []
        for number, request in news:
            item = told(request)
            if isinstance(item, ArtifactError):
                self._end(item)
            if isinstance(item, Progress):
                progress.append((number, item))
            else:
                faults.append((number, Fault.of(item)))
        self._send(progress, faults)

    def _end(self, error: ArtifactError) -> NoReturn:
        """Ends the process, whose weights are not what they were, before it tells anybody more.

        The front opens the artifact again, and takes it if it is whole.
        """
        self._outbox.send(Logged(logging.ERROR, encodable(error.found)))
        os._exit(error.exit_code)

    def _send(self, progress: list[tuple[int, Progress]], faults: list[tuple[int, Fault]]) -> None:
        self._asked.difference_update(number for number, each in progress if each.finished)
        self._asked.difference_update(number for number, _ in faults)
        self._outbox.send(Told(progress, faults))


def serve(connection: socket.socket) -> int:
    """Answers what comes over the connection until it ends. Returns the exit code."""
    outbox = Outbox(connection)
    logging.getLogger("ingot").addHandler(_LogSender(outbox))
    reader = FrameReader[ToEngine](ToEngine)
    server: EngineServer | None = None
    try:
        while data := connection.recv(READ_BYTES):
            for message in reader.feed(data):
                if server is not None:
                    server.do(message)
                elif isinstance(message, Open):
                    server = _opened(message, outbox)
                else:
                    raise ProtocolError(f"{type(message).__name__} before Open")
    except ProtocolError as error:
        outbox.send(Logged(logging.ERROR, f"the front sent what is no message: {error.found}"))
        return 1
    except OSError:  # the front was killed
        pass
    return 0


def _opened(message: Open, outbox: Outbox) -> EngineServer | None:
    try:
        model = open_model(message.path, message.settings, message.check)
        replay_shortest(model)
        server = EngineServer(model, message.settings, outbox)
        search_rarely()
        outbox.send(Ready(facts_of(model, message.settings)))
    except IngotError as error:
        outbox.send(Refused(Fault.of(error)))
    except MemoryError:
        outbox.send(Refused(Fault.of(ResourceError("out of memory"))))
    except Exception as error:
        logging.getLogger(__name__).exception("the model cannot be opened")
        outbox.send(Refused(Fault.of(InternalError(describe(error)))))
    else:
        return server
    return None


def _other_task(*, reads: bool) -> RequestError:
    """The error of a job that this model is not for."""
    return RequestError(
        "the model generates text, and reads none as a whole"
        if reads
        else "the model reads whole texts, and generates none"
    )


class _LogSender(logging.Handler):
    """Sends records to the front's log."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        self._outbox.send(Logged(record.levelno, encodable(self.format(record))))


def _check_peer(connection: socket.socket) -> None:
    """Raises ProtocolError for a socket of another user's process."""
    size = struct.calcsize("3i")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack("3i", found)
    if user != os.getuid():
        raise ProtocolError(f"the socket belongs to user {user}")


def main() -> None:
    """The process, with the descriptor of its socket as its argument."""
    faulthandler.enable()
    tie_to_parent()
    with suppress(OSError):  # where memory runs out, a model goes before the front
        Path("/proc/self/oom_score_adj").write_text("500")
    connection = socket.socket(fileno=int(sys.argv[1]))
    _check_peer(connection)
    code = serve(connection)
    sys.stderr.flush()
    # Threads of the engine may be in a step that never ends. It closes the connection as well: the
    # front, which sees that, finds a process that ends by itself.
    os._exit(code)


if __name__ == "__main__":
    main()
