"""Greedy text of a side that has no cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot.runtime.arrays import Float32


def greedy_by_logits(
    logits: Callable[[Sequence[int]], Float32], tokens: Sequence[int], count: int
) -> list[int]:
    """The `count` likeliest tokens after those; the whole sequence is scored anew for each."""
    found: list[int] = []
    for _ in range(count):
        found.append(int(logits([*tokens, *found])[-1].argmax()))
    return found
