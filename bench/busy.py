"""Tokens a second beside other work: the default number of threads, and one thread.

    python -m bench.busy ARTIFACT [ARTIFACT ...] [--rounds 3] [--seconds 2]

Busy processes compete with the model for all processors. Each window opens the model anew, so what
it learns about the machine in its first moments counts, too. Windows of the contenders alternate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

COMPETITORS = (0, 1, 2, 4)
CONTENDERS = {"default": None, "1 thread": 1}
SPIN = "while True: pass"
GENERATE = """
import json, sys, time
from ingot import LLM, SamplingParams
path, threads, seconds = json.loads(sys.argv[1])
with LLM(path, num_threads=threads) as llm:
    params = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True, detokenize=False)
    tokens, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        tokens += len(llm.generate([[1, 2, 3]], params)[0].outputs[0].token_ids)
    print(tokens / (time.perf_counter() - begin))
"""


def main() -> None:
    args = _parser().parse_args()
    for artifact in args.artifacts:
        print(f"\n{artifact.name}, tokens a second")
        print(f"{'busy processes':16}{''.join(f'{name:>12}' for name in CONTENDERS)}{'ratio':>8}")
        for count in COMPETITORS:
            speeds = compare(artifact, count, args.rounds, args.seconds)
            ratio = speeds["default"] / speeds["1 thread"]
            shown = "".join(f"{speed:12,.1f}" for speed in speeds.values())
            print(f"{count:<16}{shown}{ratio:8.2f}", flush=True)


def compare(artifact: Path, busy: int, rounds: int, seconds: float) -> dict[str, float]:
    """The median speed of every contender beside so many busy processes."""
    speeds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    with competitors(busy):
        for _ in range(rounds):
            for name, threads in CONTENDERS.items():
                speeds[name].append(speed(artifact, threads, seconds))
    return {name: statistics.median(found) for name, found in speeds.items()}


def speed(artifact: Path, threads: int | None, seconds: float) -> float:
    """Tokens a second of one window."""
    command = [sys.executable, "-c", GENERATE, json.dumps([str(artifact), threads, seconds])]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a window")
    return parser


if __name__ == "__main__":
    main()
