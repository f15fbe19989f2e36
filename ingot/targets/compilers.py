"""Compilers that run beside the rest of a compile, and end with it, however it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from threading import Event, Lock
from types import TracebackType

from ingot.artifact.host import usable_processors
from ingot.errors import ToolchainError
from ingot.files import stamp

GRACE_SECONDS = 5  # in which a compiler that is told to end removes its temporary files
LOOK_SECONDS = 0.2
VERSION_SECONDS = 20


class Builder(ThreadPoolExecutor):
    """A thread for compilers. Leaving it by an error ends those that run, at once."""

    def __init__(self) -> None:
        self._stop = Event()
        super().__init__(1, "ingot-build", _stopping.set, (self._stop,))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if kind is not None:
            self._stop.set()
            self.shutdown(wait=False, cancel_futures=True)
        return super().__exit__(kind, error, trace)


# Set in the threads of a Builder, where it is left by an error.
_stopping: ContextVar[Event] = ContextVar("stopping")
_locks: dict[str, Lock] = {}  # of what this process has compiled, so they are few


def run_compiler(
    command: tuple[str, ...], timeout_seconds: float, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a compiler in a process group of its own, of which nothing is left if this raises.

    `environ`: all variables that it sees; by default those of this process.
    Raises OSError when it cannot be started, and subprocess.TimeoutExpired.
    """
    stop, began = _stopping.get(Event()), time.monotonic()
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(
        command,
        env=environ,
        stdin=null,
        stdout=pipe,
        stderr=pipe,
        errors="replace",
        process_group=0,
    ) as process:
        try:
            while not stop.is_set():
                left = began + timeout_seconds - time.monotonic()
                try:
                    out, err = process.communicate(timeout=min(LOOK_SECONDS, max(left, 0.0)))
                    return subprocess.CompletedProcess(command, process.returncode, out, err)
                except subprocess.TimeoutExpired:
                    if left <= LOOK_SECONDS:
                        raise
            raise ToolchainError("the compiler was stopped")
        except BaseException:
            _end_group(process)
            raise


@contextmanager
def alone(key: str) -> Iterator[None]:
    """Lets one thread at a time work under a key: the next one finds what that has made.

    Raises ToolchainError if the Builder whose thread waits is left by an error.
    """
    stop, lock = _stopping.get(Event()), _locks.setdefault(key, Lock())
    while not lock.acquire(timeout=LOOK_SECONDS):
        if stop.is_set():
            raise ToolchainError("the compiler was stopped")
    try:
        yield
    finally:
        lock.release()


def raise_failed(jobs: Iterable[Future[None]], *, wait: bool = False) -> None:
    """Raises what a job that has ended raised: work that waits for it would be in vain.

    With `wait` all jobs end first.
    """
    for job in jobs:
        if wait or job.done():
            job.result()


def side_by_side(jobs: Iterable[Callable[[], None]]) -> None:
    """Runs jobs that run compilers, one for each processor at a time, and raises their first error.

    That error, an interrupt, or the end of the Builder whose thread this is, stops all of them.
    """
    stop = _stopping.get(None) or Event()
    with ThreadPoolExecutor(usable_processors(), "", _stopping.set, (stop,)) as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            for future in futures:
                future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def version_line(command: tuple[str, ...]) -> str:
    """The first line that a compiler says about its version. Raises as `run_compiler` does."""
    done = run_compiler((*command, "--version"), VERSION_SECONDS)
    return (done.stdout.splitlines() or [""])[0]


def identity(command: tuple[str, ...]) -> tuple[str | int, ...]:
    """Changes with the compiler: its command, its program's size and time of change, its version.

    Raises as `run_compiler` does.
    """
    program = Path(shutil.which(command[0]) or command[0])
    return (*command, *stamp(program), version_line(command))


def _end_group(process: subprocess.Popen[str]) -> None:
    # The driver removes its temporary files when it is asked to end, the processes that it has
    # started do not end with it.
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
