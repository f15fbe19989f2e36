"""Which cases of a test belong to the core, to `make test-all` alone, or to `make test-slow`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest


def core(*first: Any, further: Iterable[Any], slow: Iterable[Any] = ()) -> list[Any]:
    """Cases for `parametrize`: the first, further ones that are marked thorough, and slow ones.

    A case that is a tuple has a value for each argument. One that comes twice counts once, where it
    comes first.

    Raises:
        TypeError: The cases are a set. Every test process must find them in the same order.
    """
    if isinstance(further, set | frozenset) or isinstance(slow, set | frozenset):
        raise TypeError("the order of a set differs between test processes: sort it")
    further = [case for case in further if case not in first]
    rest = [case for case in slow if case not in first and case not in further]
    return [
        *first,
        *(_marked(case, pytest.mark.thorough) for case in further),
        *(_marked(case, pytest.mark.slow) for case in rest),
    ]


def _marked(case: Any, mark: pytest.MarkDecorator) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=mark)


def mark_further(items: Iterable[pytest.Item]) -> None:
    """Keeps the first cases of tests that say how many they want: `@pytest.mark.cases(core=2)`.

    Those of the core beyond `core` become thorough ones, and thorough ones beyond `thorough` slow
    ones. Both are unlimited if not given.
    """
    kept: Counter[tuple[str, str]] = Counter()
    for item in items:
        wanted = item.get_closest_marker("cases")
        if wanted is None or item.get_closest_marker("slow"):
            continue
        test = item.nodeid.partition("[")[0]
        tiers = ["thorough"] if item.get_closest_marker("thorough") else ["core", "thorough"]
        for tier, beyond in zip(tiers, ["thorough", "slow"][-len(tiers) :], strict=True):
            if kept[test, tier] < wanted.kwargs.get(tier, math.inf):
                kept[test, tier] += 1
                break
            item.add_marker(beyond)
