"""Work that reads weights in a thread of its own, beside the caller's, and ends with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event

import torch

from ingot.compiler.torch_threads import torch_threads

OnRead = Callable[[str], None]


class _Left(Exception):
    """Nobody waits for the work any more."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Work that was begun; the weights that it has read, and None at its end."""

    job: Future[None]
    names: SimpleQueue[str | None]

    def wait(self, began: OnRead) -> None:
        """Waits for the work, and calls `began` here with every weight that it has begun to read.

        Raises what the work raised.
        """
        for name in iter(self.names.get, None):
            began(name)
        self.job.result()


@contextmanager
def beside(work: Callable[[OnRead], None]) -> Iterator[Beside]:
    """Begins work in another thread; leaving this ends it at the weight that it reads next.

    The work calls what it is given with the name of every weight before it reads it.
    """
    left, names = Event(), SimpleQueue[str | None]()

    def on_read(name: str) -> None:
        if left.is_set():
            raise _Left
        names.put(name)

    def run() -> None:
        try:
            # One thread less, so that none of them waits for the caller's.
            with torch_threads(max(1, torch.get_num_threads() - 1)):
                work(on_read)
        finally:
            names.put(None)

    with ThreadPoolExecutor(1, "ingot-beside") as pool:
        try:
            yield Beside(pool.submit(run), names)
        finally:
            left.set()
