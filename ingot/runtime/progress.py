"""A line on stderr that shows how far a call has come."""

from __future__ import annotations

import sys
import time

from ingot.runtime.request import Request

EVERY_SECONDS = 0.1


class Progress:
    """Follows requests. Shows nothing unless it is wanted and stderr is a terminal."""

    def __init__(self, requests: list[Request], *, wanted: bool) -> None:
        self._requests = requests
        self.is_shown = wanted and bool(requests) and sys.stderr is not None and sys.stderr.isatty()
        self._begin = self._last = time.perf_counter()

    def update(self) -> None:
        """Shows the present, now and then."""
        if self.is_shown and time.perf_counter() - self._last >= EVERY_SECONDS:
            self._show()

    def close(self) -> None:
        """Shows the end and leaves the line."""
        if self.is_shown:
            self._show()
            print(file=sys.stderr)

    def _show(self) -> None:
        self._last = time.perf_counter()
        num_finished = sum(request.finished for request in self._requests)
        num_tokens = sum(request.num_generated for request in self._requests)
        rate = num_tokens / max(self._last - self._begin, 1e-9)
        line = (
            f"{num_finished}/{len(self._requests)} prompts, {num_tokens} tokens, {rate:.0f} tok/s"
        )
        print(f"\r{line:<60}", end="", file=sys.stderr, flush=True)
