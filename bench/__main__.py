"""Measures what ingot promises, each figure beside its limit, in one run on this machine.

    python -m bench [--shape qwen3-0.6b] [--work build/bench] [--json FILE]

A model of that exact shape with random bfloat16 weights is made once in the work folder, compiled,
opened and run; every figure comes from a process of its own, as a user would start it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.arguments import one_of
from bench.figure import Figure, machine, show
from bench.make_model import SHAPES
from bench.processes import WORK, ingot_bench, made_model, run_script

# Required by the project's contract; None: reported only.
COMPILE_SECONDS = {"qwen3-0.6b": 25.0}
COMPILE_GB = {"qwen3-0.6b": 3.0, "qwen3-4b": 4.0}
MEMORY_MB = 150.0
SHARES = {"prefill 512": 50.0, "decode context 512": 80.0}


def main() -> int:
    """Prints the table; 1 if a limit is missed."""
    args = _parser().parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    print(f"{machine()}, model {args.shape}\n")
    return show(measure(args.shape, args.work), args.json)


def measure(shape: str, work: Path) -> Iterator[Figure]:
    """All figures of a shape, as they are measured."""
    artifact = work / f"{shape}.ingot"
    compiled = run_script("compile_figures", str(made_model(shape, work)), str(artifact))
    yield Figure("compile", compiled["seconds"], "s", COMPILE_SECONDS.get(shape))
    yield Figure("compile, peak memory", compiled["peak_gb"], "GB", COMPILE_GB.get(shape))
    started = run_script("start_figures", str(artifact))
    yield Figure("import ingot", started["import_seconds"], "s", 0.2)
    yield Figure("artifact open to ready", started["open_seconds"], "s", 0.15)
    yield Figure("process start to first token", started["first_token_seconds"], "s")
    ran = ingot_bench(artifact)
    (work / f"{shape}.json").write_text(json.dumps(ran))  # for bench/chart.py
    limits = ran["limits"]
    yield Figure("read bandwidth", limits["read_bytes_per_second"] / 1e9, "GB/s")
    for kind, peak in limits["operations_per_second"].items():
        yield Figure(f"peak in {kind}", peak / 1e9, "GOP/s")
    for phase in ran["phases"]:
        yield Figure(phase["name"], phase["tokens_per_second"], "tok/s")
        least = SHARES.get(phase["name"])
        yield Figure(f"{phase['name']}, of the limit", 100 * phase["share"], "%", least, "higher")
    held = run_script("memory_figures", str(artifact))
    yield Figure(
        "memory beyond weights and KV pool",
        held["extra_mb"],
        "MB",
        MEMORY_MB,
        note=f"{held['peak_mb']:.0f} MB in all",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--shape", type=one_of(SHAPES), default="qwen3-0.6b", help="a shape of bench/make_model.py"
    )
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
