"""What every worker does: it takes a prompt a line, and answers with the seconds of its tokens."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from itertools import pairwise

# Seconds of each token of a greedy completion of a prompt; the first includes the prefill.
Generate = Callable[[list[int], int], list[float]]


def serve(open_model: Callable[[str, int, int], Generate]) -> None:
    """Opens the model that argv names, with as many threads and room for as many tokens as it
    says, and serves until stdin ends."""
    # Libraries print to stdout; only the answers may go there.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    generate = open_model(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        seconds = generate(request["tokens"], request["new_tokens"])
        print(json.dumps({"seconds": seconds}), file=answers)


def seconds_of(tokens: Iterable[object]) -> list[float]:
    """How long each of them took to come."""
    marks = [time.perf_counter()]
    marks += [time.perf_counter() for _ in tokens]
    return [after - before for before, after in pairwise(marks)]
