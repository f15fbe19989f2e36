"""Which tests can see a change, and which of them are worth a person's time.

What is nearest by reads comes first: a test that imports the changed module before one that imports
a module that imports it. Of those as near, the ones in the folder that mirrors the change's come
first, then the quick ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePath

from tests.support.times import Times
from tools.affected.reads import C_SUFFIXES, Reads

START_SECONDS = 8.0  # until test processes have found their tests
UNKNOWN_SECONDS = 1.0  # of a file of tests that has never run here


@dataclass(frozen=True)
class Affected:
    """A file of tests that can see the change."""

    path: str
    distance: int  # how many reads away
    in_mirror: int  # how many folders of its path are those of the change
    seconds: float
    is_known: bool  # whether it has run here


def affected(reads: Reads, changed: Iterable[str], times: Times) -> list[Affected]:
    """The files of tests that read what has changed, directly or not, the nearest first."""
    changed = sorted(changed)
    distances = _distances(reads, changed)
    is_rebuilt = any(path.endswith(C_SUFFIXES) for path in changed)
    found = [
        _affected(path, distance, changed, times.get(path, {}), is_rebuilt)
        for path, distance in distances.items()
        if _is_test(path)
    ]
    return sorted(found, key=lambda a: (a.distance, -a.in_mirror, a.seconds, a.path))


def fitting(
    found: Sequence[Affected], processes: int, most_seconds: float
) -> tuple[list[Affected], list[Affected]]:
    """Those that fit into so many seconds, and the others. The nearest is always among them."""
    chosen: list[Affected] = []
    left: list[Affected] = []
    for each in found:
        fits = estimate([*chosen, each], processes) <= most_seconds
        (chosen if fits or not chosen else left).append(each)
    return chosen, left


def estimate(found: Iterable[Affected], processes: int) -> float:
    """The seconds that a run takes; no less than its longest file does."""
    seconds = [each.seconds for each in found]
    return START_SECONDS + max(sum(seconds) / processes, max(seconds, default=0.0))


def _affected(
    path: str,
    distance: int,
    changed: Iterable[str],
    tests: Mapping[str, tuple[float, float]],
    is_rebuilt: bool,
) -> Affected:
    seconds = sum(most if is_rebuilt else last for last, most in tests.values())
    in_mirror = max(_common_folders(path, other) for other in changed)
    return Affected(path, distance, in_mirror, seconds if tests else UNKNOWN_SECONDS, bool(tests))


def _common_folders(path: str, other: str) -> int:
    """Of tests/passes/a.py and ingot/passes/b.py it is one."""
    both = zip(PurePath(path).parent.parts[1:], PurePath(other).parent.parts[1:], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))


def _distances(reads: Reads, changed: Iterable[str]) -> Mapping[str, int]:
    """How far each node is that reads one of those files, which are there, too."""
    readers = defaultdict(list)
    for node in sorted(reads):
        for read in reads[node]:
            readers[read].append(node)
    distances = dict.fromkeys(changed, 0)
    queue = list(distances)
    for node in queue:
        for reader in readers[node]:
            if reader not in distances:
                distances[reader] = distances[node] + 1
                queue.append(reader)
    return distances


def _is_test(path: str) -> bool:
    name = PurePath(path).name
    return path.startswith("tests/") and name.startswith("test_") and name.endswith(".py")
