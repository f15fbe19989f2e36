"""Stop strings in text that arrives in pieces."""

from __future__ import annotations


class StopStrings:
    """Lets text through until a stop string is complete, and holds back what may be part of one.

    The stop string that is complete first counts; of those that are complete at the same
    character, the longest. How the text was cut into pieces does not matter.
    """

    def __init__(self, stops: tuple[str, ...], *, include: bool) -> None:
        self._stops = stops
        self._include = include
        self._held = ""
        self.found: str | None = None

    def push(self, text: str, *, armed: bool = True) -> str:
        """Adds a piece and returns the text that is safe to show.

        Without `armed`, nothing that ends inside this piece is a stop string. After one was
        `found`, the rest of the text is dropped.
        """
        if not self._stops or self.found is not None:
            return "" if self.found is not None else text
        begin = len(self._held)
        self._held += text
        if armed:
            match = self._first_match(begin)
            if match is not None:
                end, self.found = match
                return self._release(end if self._include else end - len(self.found), drop=True)
        return self._release(len(self._held) - self._overlap())

    def finish(self) -> str:
        """The text that was held back, when no more will come."""
        return self._release(len(self._held))

    def _first_match(self, begin: int) -> tuple[int, str] | None:
        """The end of the first stop string that ends after `begin`, and the string."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = self._held.find(stop, max(0, begin - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[0], best[2])

    def _overlap(self) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        longest = max(len(stop) for stop in self._stops) - 1
        for count in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-count:]
            if any(stop.startswith(tail) for stop in self._stops if len(stop) > count):
                return count
        return 0

    def _release(self, count: int, *, drop: bool = False) -> str:
        text, rest = self._held[:count], self._held[count:]
        self._held = "" if drop else rest
        return text
