"""Types are learnt by one thread at a time: msgspec ends the process where two do so at once."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.conftest import ROOT

# Learning the classes inside of a plan runs code of `typing`. There the first thread waits for the
# second one to decode, or for a moment where that one waits for it.
PROGRAM = """
import threading, typing
import msgspec
from ingot.artifact.decoding import decode_json
from ingot.artifact.plan import Plan

inside, done, seen = threading.Event(), threading.Event(), []
evaluate = typing.ForwardRef._evaluate
def slowly(name, *given, **named):
    if name.__forward_arg__ == "Format" and not inside.is_set():
        inside.set()
        done.wait(0.2)
    return evaluate(name, *given, **named)
typing.ForwardRef._evaluate = slowly

def decode():
    try:
        DECODE(DATA)
    except msgspec.ValidationError as error:
        seen.append(str(error))

def second():
    inside.wait()
    decode()
    done.set()

threads = [threading.Thread(target=each) for each in (decode, second)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(seen) == 2 and len({*seen}) == 1, seen
"""


def ended(decode: str) -> int:
    data = '{"memory": {}, "instructions": []}'
    code = PROGRAM.replace("DECODE", f"({decode})").replace("DATA", f"b{data!r}")
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True).returncode


def test_threads_may_decode_a_new_type_at_once():
    assert ended("lambda data: decode_json(data, Plan)") == 0


def test_without_that_they_crash():
    assert ended("lambda data: msgspec.json.decode(data, type=Plan)") == -signal.SIGSEGV
