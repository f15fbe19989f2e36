"""Tokens a second beside other work: the default number of threads, and one and two threads.

    python -m bench.busy ARTIFACT [ARTIFACT ...] [--rounds 12] [--seconds 2]

Busy processes compete with the model for all processors. Each window opens the model anew, so what
it learns about the machine in its first moments counts, too. Windows of the contenders alternate.
The system hands out processors unevenly from window to window, so tokens per second of processor
time stand beside tokens per second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

COMPETITORS = (0, 1, 2, 4)
CONTENDERS = {"default": None, "1 thread": 1, "2 threads": 2}
KINDS = ("wall", "work")
SPIN = "while True: pass"
GENERATE = """
import json, sys, time
from ingot import LLM, SamplingParams
path, threads, seconds = json.loads(sys.argv[1])
with LLM(path, num_threads=threads) as llm:
    params = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True, detokenize=False)
    tokens, begin, worked = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < seconds:
        tokens += len(llm.generate([[1, 2, 3]], params)[0].outputs[0].token_ids)
    print(tokens / (time.perf_counter() - begin), tokens / (time.process_time() - worked))
"""


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second, and per second of processor time."""

    wall: float
    work: float


def main() -> None:
    args = _parser().parse_args()
    for artifact in args.artifacts:
        print(f"\n{artifact.name}, tokens a second, and a second of processor time")
        names = "".join(f"{name:>12}" for name in CONTENDERS) + f"{'ratio':>8}"
        print(f"{'busy processes':16}{names}{names}")
        for count in COMPETITORS:
            speeds = compare(artifact, count, args.rounds, args.seconds)
            walls, works = ([getattr(speeds[n], kind) for n in CONTENDERS] for kind in KINDS)
            print(f"{count:<16}{_row(walls)}{_row(works)}", flush=True)


def _row(speeds: list[float]) -> str:
    """Each contender, and the first over the best of the others."""
    default, *others = speeds
    return "".join(f"{speed:12,.1f}" for speed in speeds) + f"{default / max(others):8.2f}"


def compare(artifact: Path, busy: int, rounds: int, seconds: float) -> dict[str, Speed]:
    """The median speeds of every contender beside so many busy processes."""
    speeds: dict[str, list[Speed]] = {name: [] for name in CONTENDERS}
    with competitors(busy):
        for _ in range(rounds):
            for name, threads in CONTENDERS.items():
                speeds[name].append(speed(artifact, threads, seconds))
    return {
        name: Speed(*(statistics.median(getattr(each, kind) for each in found) for kind in KINDS))
        for name, found in speeds.items()
    }


def speed(artifact: Path, threads: int | None, seconds: float) -> Speed:
    """The speeds of one window."""
    command = [sys.executable, "-c", GENERATE, json.dumps([str(artifact), threads, seconds])]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return Speed(*map(float, said.split()))


@contextmanager
def competitors(count: int) -> Iterator[Sequence[subprocess.Popen[bytes]]]:
    """So many processes that never rest."""
    running = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.busy", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("artifacts", nargs="+", type=Path, metavar="ARTIFACT")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a window")
    return parser


if __name__ == "__main__":
    main()
