"""A lock that threads get in the order in which they ask for it."""

from __future__ import annotations

import threading
from collections import deque


class FairLock:
    """As `threading.Lock`, whose holder can take it again and again while others wait."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held = False
        self._gates: deque[threading.Lock] = deque()

    def acquire(self) -> None:
        with self._mutex:
            if not self._held:
                self._held = True
                return
            gate = threading.Lock()
            gate.acquire()
            self._gates.append(gate)
        try:
            gate.acquire()
        except BaseException:  # Ctrl-C: leave the line, or pass on what came just now
            with self._mutex:
                waits = gate in self._gates
                if waits:
                    self._gates.remove(gate)
            if not waits:
                self.release()
            raise

    def release(self) -> None:
        with self._mutex:
            if self._gates:
                self._gates.popleft().release()
            else:
                self._held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
