"""Signatures of weights when artifacts were opened, of file properties that every write changes."""

from __future__ import annotations

from pathlib import Path

from ingot.artifact.reader import Check

Seen = frozenset[tuple[str, int, int]]


class WeightsSeen:
    """Says how to check artifacts that are opened again.

    Weights are not hashed when an artifact is opened. Those that were written to since they were
    opened are: whoever wrote may have been cut off, or have meant another model.
    """

    def __init__(self) -> None:
        self._trusted: dict[str, Seen] = {}

    def check_of(self, path: str, found: Seen) -> Check:
        """The check that the artifact needs where its weights look so."""
        return "fast" if self._trusted.get(path, found) == found else "full"

    def trust(self, path: str, found: Seen) -> None:
        """The artifact was opened, and its weights looked so before."""
        self._trusted[path] = found


def look(path: str) -> Seen:
    """Signature of an artifact's weights; empty where they cannot be read, as opening will tell."""
    try:
        found = [(each.name, each.stat()) for each in Path(path, "weights").iterdir()]
    except OSError:
        return frozenset()
    return frozenset((name, status.st_mtime_ns, status.st_size) for name, status in found)
