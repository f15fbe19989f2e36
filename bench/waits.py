"""Measures what a user waits for: help, first tokens, and compiles of shapes that are new or known.

    python -m bench.waits [--work build/bench] [--json FILE]

A compile is cold in an empty cache: kernels and graphs of the shape were never built. It is again
when the same shape was compiled before, with other weights or the same.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figure import Figure, machine, show
from bench.processes import ROOT, WORK, made_model, run_script

BUNDLED = ROOT / "golden" / "models" / "shakespeare"
ROUNDS = 3
# Limits in seconds: cold, and again.
COMPILES = {"bundled": (5.0, 2.0), "qwen3-0.6b": (10.0, 4.0)}
MOST_DEEPER = 1.5  # times a compile of 28 layers, for 80


def main() -> int:
    """Prints the table; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    print(f"{machine()}\n")
    return show(measure(args.work), args.json)


def measure(work: Path) -> Iterator[Figure]:
    """All waits, as they are measured."""
    yield Figure("ingot --help", help_seconds(), "s", 0.1)
    models = {"bundled": BUNDLED, "qwen3-0.6b": made_model("qwen3-0.6b", work)}
    for name, model in models.items():
        artifact = work / f"{name}-waits.ingot"
        cold, again = compile_seconds(model, artifact)
        for when, seconds, most in zip(
            ("cold", "again"), (cold, again), COMPILES[name], strict=True
        ):
            yield Figure(f"compile {name}, {when}", seconds, "s", most)
    started = run_script("start_figures", str(work / "bundled-waits.ingot"))
    yield Figure("bundled, start to first token", started["first_token_seconds"], "s", 0.25)
    shallow, deep = (
        compile_seconds(made_model(f"tiny-{layers}", work), work / "tiny-waits.ingot")[0]
        for layers in (28, 80)
    )
    yield Figure("compile of 80 layers over 28", deep / shallow, "x", MOST_DEEPER)


def help_seconds() -> float:
    """The median of several processes; the first, which writes byte code, is not counted."""
    command = [sys.executable, "-m", "ingot", "--help"]
    return statistics.median([_seconds(command) for _ in range(8)][1:])


def compile_seconds(model: Path, artifact: Path) -> tuple[float, float]:
    """Medians of compiles cold and again, the two in turn, each pair in a cache of its own."""
    pairs = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "INGOT_CACHE": cache}
            command = [sys.executable, "-m", "ingot", "compile", str(model), "-o", str(artifact)]
            pairs.append([_seconds([*command, "--force"], environment) for _ in range(2)])
    cold, again = zip(*pairs, strict=True)
    return statistics.median(cold), statistics.median(again)


def _seconds(command: list[str], environment: dict[str, str] | None = None) -> float:
    start = time.perf_counter()
    subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
