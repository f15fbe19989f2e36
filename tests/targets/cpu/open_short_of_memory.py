"""Opens an artifact again and again, each time with one request for memory or a thread that fails.

Run with fail_allocations.c in LD_PRELOAD. Prints, as JSON, how each attempt ended: the error's type
or the tokens that the model drew, what it has left behind, and whether the next one was right.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time

from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
PROMPT = [{"prompt_token_ids": [5, 9, 200, 31]}]
NUM_THREADS, SECONDS = 3, 20.0

shim = ctypes.CDLL(None)


def held() -> set[str]:
    """Threads, open files, and mappings of the artifact's files and code."""
    with open("/proc/self/maps") as maps:
        mapped = {line for line in maps if ".safetensors" in line or "memfd:" in line}
    threads = {f"thread {each}" for each in os.listdir("/proc/self/task")}
    return mapped | threads | {f"file {each}" for each in os.listdir("/proc/self/fd")}


def left(before: set[str]) -> list[str]:
    """What is held since then, once threads that were joined are off the system's list as well."""
    gc.collect()
    end = time.monotonic() + SECONDS
    while (found := held() - before) and time.monotonic() < end:
        os.sched_yield()
    return sorted(found)


def attempt(path: str, number: int) -> tuple[object, int, list[int]]:
    """Opens the artifact and asks it once, and counts what the opening and the asking take."""
    shim.fail_call(number)
    try:
        llm = LLM(path, num_threads=NUM_THREADS)
    except Exception as error:
        return type(error).__name__, shim.calls(), []
    num_calls = shim.calls()
    with llm:
        shim.fail_call(0)
        tokens = llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids
        return list(tokens), num_calls, [shim.calls()]


def main(path: str) -> None:
    wanted, _, of_steps = attempt(path, 0)
    ends, number, failed = [], 0, True
    while failed:
        number += 1
        before = held()
        end, num_calls, _ = attempt(path, number)
        failed = num_calls >= number
        ends.append([end, left(before), attempt(path, 0)[0] == wanted])
    print(json.dumps({"steps": of_steps, "wanted": wanted, "ends": ends}))


main(sys.argv[1])
