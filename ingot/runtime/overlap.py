"""Host work beside native work: a thread that works while another is inside the kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class Helper:
    """One thread, started when it is first needed. Not safe for several callers at once."""

    def __init__(self) -> None:
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def beside(self, work: Callable[[], None], main: Callable[[], T]) -> T:
        """Runs `main` here and `work` in the thread, and returns when both are over.

        What either raises is raised, `main`'s first.
        """
        if self._thread is None:
            # A daemon: one that waits for work must not keep Python from exiting.
            self._thread = threading.Thread(
                target=_loop, args=(self._todo, self._done), name="ingot-helper", daemon=True
            )
            self._thread.start()
        self._todo.put(work)
        try:
            result = main()
        finally:
            error = self._wait()
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Ends the thread. A later call of `beside` starts another."""
        if self._thread is not None:
            self._todo.put(None)
            self._thread.join()
            self._thread = None

    def _wait(self) -> BaseException | None:
        """Waits for the work, whatever happens: it must not go on when the step is over."""
        interrupt: BaseException | None = None
        while True:
            try:
                error = self._done.get()
                break
            except BaseException as caught:  # Ctrl-C
                interrupt = caught
        return interrupt or error


def _loop(
    todo: SimpleQueue[Callable[[], None] | None], done: SimpleQueue[BaseException | None]
) -> None:
    while (work := todo.get()) is not None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as caught:
            error = caught
        del work  # it may hold the model, which can be forgotten while this thread waits
        done.put(error)
        del error
