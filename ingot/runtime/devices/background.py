"""A thread that runs one piece of work at a time beside the one that asks for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """The thread is started when it is first needed. For one caller at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._todo: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._done: SimpleQueue[T | BaseException] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], T]) -> Callable[[], T]:
        """Begins the work; returns what waits for it, and returns or raises what it did."""
        if self._thread is None:
            # A daemon: one that waits for work must not keep Python from exiting.
            self._thread = threading.Thread(
                target=_loop, args=(self._todo, self._done), name=self._name, daemon=True
            )
            self._thread.start()
        self._todo.put(work)
        return self._wait

    def close(self) -> None:
        """Ends the thread. A later `start` starts another."""
        if self._thread is not None:
            self._todo.put(None)
            self._thread.join()
            self._thread = None

    def _wait(self) -> T:
        result = self._done.get()
        if isinstance(result, BaseException):
            raise result
        return result


def _loop(todo: SimpleQueue[Callable[[], T] | None], done: SimpleQueue[T | BaseException]) -> None:
    while (work := todo.get()) is not None:
        try:
            result: T | BaseException = work()
        except BaseException as error:
            result = error
        del work  # it may hold the model, which can be forgotten while this thread waits
        done.put(result)
        del result
