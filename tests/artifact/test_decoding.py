"""Types are learnt by one thread at a time: msgspec before 0.23 ends the process where two do so at
once."""

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

inside, done, met, seen = threading.Event(), threading.Event(), [], []
evaluate = typing.ForwardRef._evaluate
def slowly(name, *given, **named):
    if name.__forward_arg__ == "Format" and not inside.is_set():
        inside.set()
        met.append(done.wait(SECONDS))
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
print("together" if met == [True] else "one after the other")
"""


def ended(decode: str, seconds: float) -> tuple[int, str]:
    """How a process ends whose first thread lets another one in meanwhile, for so long at most."""
    data = '{"memory": {}, "instructions": []}'
    code = PROGRAM.replace("DECODE", f"({decode})").replace("DATA", f"b{data!r}")
    command = [sys.executable, "-c", code.replace("SECONDS", str(seconds))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout.strip()


def test_threads_may_decode_a_new_type_at_once():
    assert ended("lambda data: decode_json(data, Plan)", 0.2) == (0, "one after the other")


def test_without_that_they_meet():
    met = ended("lambda data: msgspec.json.decode(data, type=Plan)", 60)
    assert met in [(-signal.SIGSEGV, ""), (0, "together")]
