"""The speed limit of decoding: the bytes that a token must read, and how fast memory gives them."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

from ingot.artifact.plan import Plan
from ingot.cli.artifact_view import buffer_bytes

SMALLEST, LARGEST = 1 << 20, 1 << 29


def decode_bytes(plan: Plan) -> int:
    """Bytes of weights that a step of one token must read: all but gathered embedding rows."""
    read = {
        name
        for instruction in plan.instructions
        if instruction.op != "embedding"
        for name in instruction.inputs.values()
    }
    return sum(buffer_bytes(b, plan) for b in plan.of_kind("weight") if b.name in read)


def read_bandwidth(nbytes: int, rounds: int = 5) -> float:
    """Bytes a second at which this host reads a buffer of that size, best of some rounds.

    A buffer that fits into a cache is read from there, as a small model's weights are.
    """
    import numpy as np

    threads = os.cpu_count() or 1
    data = np.ones(min(max(nbytes, SMALLEST), LARGEST) // 8, np.int64)
    parts = np.array_split(data, threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds):
            start = time.perf_counter()
            list(pool.map(np.add.reduce, parts))
            best = min(best, time.perf_counter() - start)
    return data.nbytes / best
