"""`ingot serve` as a process of its own, behind a Unix socket, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

READY_SECONDS = 120.0


class ServeProcess:
    """A server; `lines` are what it has said so far."""

    def __init__(self, command: Sequence[str], socket: Path, environment: Mapping[str, str]):
        self.socket = socket
        self.lines: list[str] = []
        self._listening = threading.Event()
        self._popen = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip
        self.pid = self._popen.pid
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        """Takes all that it says: a full pipe would halt it."""
        assert self._popen.stderr is not None
        for line in self._popen.stderr:
            self.lines.append(line)
            if "listening" in line:
                self._listening.set()
        self._listening.set()

    def until_listening(self) -> None:
        assert self._listening.wait(READY_SECONDS) and "listening" in self.said, self.said

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def client(self) -> httpx.Client:
        """A client of it, with as many connections as it likes."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        transport = httpx.HTTPTransport(uds=str(self.socket), limits=limits)
        return httpx.Client(transport=transport, base_url="http://server", timeout=120)

    def until(self, holds: Callable[[httpx.Client], bool]) -> None:
        """Asks again and again until something holds. The client is another than those of the
        requests under way, which would wait for its connections."""
        with self.client() as http:
            while not holds(http):
                pass

    def until_in_line(self, model: str, **wanted: int) -> None:
        """Waits until so many of a model's requests run, or wait for a seat."""

        def holds(http: httpx.Client) -> bool:
            found = http.get("/health/details").json()["models"].get(model, {})
            return all(found.get(name, 0) >= count for name, count in wanted.items())

        self.until(holds)

    def engines(self) -> list[int]:
        """Its engines, and what else it has started."""
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(each) for each in text.split()]

    def engine_of(self, artifact: Path) -> int:
        """The engine that has opened an artifact."""
        wanted = str(artifact.resolve())
        (found,) = (
            pid for pid in self.engines() if wanted in Path(f"/proc/{pid}/maps").read_text()
        )
        return found

    def end(self, number: int = signal.SIGTERM) -> int:
        """Asks for the end; the exit code."""
        if self._popen.poll() is None:
            self._popen.send_signal(number)
        return self.wait()

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def wait(self) -> int:
        code = self._popen.wait(READY_SECONDS)
        self._reader.join()
        return code


@contextmanager
def serve_process(
    socket: Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
) -> Iterator[ServeProcess]:
    """`ingot serve` with these options, once it listens. `within` is a command that runs it."""
    command = [*within, sys.executable, "-m", "ingot", "serve", *options, "--uds", str(socket)]
    given = dict(os.environ) if environment is None else dict(environment)
    process = ServeProcess(command, socket, given)
    try:
        process.until_listening()
        yield process
    except BaseException as error:
        error.add_note(f"{process._popen.poll()}\n{process.said}")
        raise
    finally:
        process.end()


def events(lines: Iterator[str]) -> Iterator[Any]:
    """The JSON of events, without comments, up to [DONE]."""
    for line in lines:
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
