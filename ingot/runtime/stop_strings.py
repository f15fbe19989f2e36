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
            starts = ((self._held.find(s, max(0, begin - len(s) + 1)), s) for s in self._stops)
            matches = [(start + len(stop), start, stop) for start, stop in starts if start >= 0]
            if matches:
                end, _, self.found = min(matches)
                return self._release(end if self._include else end - len(self.found), drop=True)
        return self._release(len(self._held) - self._overlap())

    def finish(self) -> str:
        """Flushes the held-back text, when no more will come."""
        return self._release(len(self._held))

    def _overlap(self) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        counts = ((n, stop) for stop in self._stops for n in range(1, len(stop)))
        return max((n for n, stop in counts if self._held.endswith(stop[:n])), default=0)

    def _release(self, count: int, *, drop: bool = False) -> str:
        text, rest = self._held[:count], self._held[count:]
        self._held = "" if drop else rest
        return text
