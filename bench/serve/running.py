"""A server as a process, from its start to its end, and what it takes of the machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from bench.processes import ROOT
from ingot.cli.load.http import Address
from ingot.cli.load.server import Server

POLL_SECONDS = 0.002
READY_SECONDS = 300.0

# The command that serves on a port.
Command = Callable[[int], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is ready; `start_seconds` is how long that took."""

    port: int
    pid: int
    start_seconds: float

    def server(self, model: str, **extra: object) -> Server:
        """One of its models, for the load; `extra` are fields of every request."""
        fields = {"temperature": 0, "ignore_eos": True, **extra}
        address = Address("127.0.0.1", self.port, "", None)
        return Server(address=address, backend="openai", model=model, extra=fields)

    def engines(self) -> list[int]:
        """The processes of its engines."""
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(pid) for pid in text.split()]

    def engine_of(self, artifact: Path) -> int:
        """The engine that has opened an artifact."""
        wanted = str(artifact.resolve())
        return next(
            pid for pid in self.engines() if wanted in Path(f"/proc/{pid}/maps").read_text()
        )


def ingot_serve(models: Sequence[str], *options: str) -> Command:
    """`ingot serve` of this working copy."""
    return lambda port: [
        sys.executable, "-m", "ingot", "serve", *models, "--port", str(port), *options
    ]  # fmt: skip


@contextmanager
def serving(command: Command, environment: Mapping[str, str] | None = None) -> Iterator[Running]:
    """A server, once its `/health` says 200. Raises RuntimeError where it ends before."""
    port = _free_port()
    with tempfile.TemporaryFile("w+") as said:
        start = time.perf_counter()
        process = subprocess.Popen(
            command(port), stdout=said, stderr=said,
            env={**(environment or os.environ), "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        try:
            while not _is_ready(port):
                if process.poll() is not None or time.perf_counter() - start > READY_SECONDS:
                    said.seek(0)
                    raise RuntimeError(f"the server does not start: {said.read()[-2000:]}")
                time.sleep(POLL_SECONDS)
            yield Running(port, process.pid, time.perf_counter() - start)
        finally:
            process.terminate()
            process.wait()


def rss_mb(pid: int) -> float:
    """Resident memory that is a process's own: files that are mapped belong to all."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = (line for line in lines if line.startswith("RssAnon"))
    return int(found.split()[1]) * 1024 / 1e6


def num_fds(pid: int) -> int:
    """Open files and sockets of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def num_threads(pid: int) -> int:
    """Threads of a process."""
    return len(os.listdir(f"/proc/{pid}/task"))


def _is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except (URLError, OSError):
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
