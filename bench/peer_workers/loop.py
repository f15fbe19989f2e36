"""What every worker does: it takes prompts a line, and answers with the seconds of their tokens."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from itertools import pairwise

# What completes prompts, all at once, with as many tokens each.
Complete = Callable[[list[list[int]], int], object]
# Seconds of each token of greedy completions, one of each prompt; the first includes the prefill.
Generate = Callable[[list[list[int]], int], list[float]]


def serve(open_model: Callable[[str, int, int, int], Generate]) -> None:
    """Opens the model that argv names, with as many threads, room for as many tokens of a sequence
    and for as many sequences as it says, and serves until stdin ends."""
    # Libraries print to stdout; only the answers may go there.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    generate = open_model(sys.argv[1], *map(int, sys.argv[2:5]))
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        seconds = generate(request["prompts"], request["new_tokens"])
        print(json.dumps({"seconds": seconds}), file=answers)


def seconds_of(tokens: Iterable[object]) -> list[float]:
    """How long each of them took to come."""
    marks = [time.perf_counter()]
    marks += [time.perf_counter() for _ in tokens]
    return [after - before for before, after in pairwise(marks)]


def in_two_turns(complete: Complete) -> Generate:
    """Where all tokens come at once: a turn with one token of each prompt, then one with all.

    The very first turn also touches new memory, so it is not timed.
    """
    warm = False

    def seconds(prompts: list[list[int]], new_tokens: int) -> float:
        start = time.perf_counter()
        complete(prompts, new_tokens)
        return time.perf_counter() - start

    def generate(prompts: list[list[int]], new_tokens: int) -> list[float]:
        nonlocal warm
        # Each of other prompts, so that nothing of them is found in a cache.
        second, third = ([[token + n, *rest] for token, *rest in prompts] for n in (1, 2))
        if not warm:
            complete(third, new_tokens)
            warm = True
        first = seconds(prompts, 1)
        later = (seconds(second, new_tokens) - first) / (new_tokens - 1)
        return [first] + [later] * (new_tokens - 1)

    return generate
