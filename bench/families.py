"""Measures a model of every dense family beside the limits of this machine.

    python -m bench.families [NAME ...] [--quantize int4] [--target NAME] [--rounds 3] [--json FILE]

Models have the widths of published ones and random weights; see `bench/family_shapes.py`. Each is
made, compiled, measured, and removed, so that the largest needs 8 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from bench.arguments import at_least, one_of
from bench.family_shapes import FAMILY_SHAPES
from bench.processes import WORK, ingot_bench, run_script

# Shares of the limit that every family has to reach.
LEAST = {"prefill": 0.78, "decode": 0.88}
HEADER = f"{'shape':<20}" + "".join(f"{phase:>10} tok/s  of limit" for phase in LEAST)


def measure(shape: str, work: Path, options: list[str], rounds: int) -> dict[str, Any]:
    """Speed and share of the limit by phase."""
    model, artifact = work / shape, work / f"{shape}.ingot"
    try:
        run_script("make_model", str(model), "--shape", shape, "--repeat")
        run_script("compile_figures", str(model), str(artifact), *options)
        ran = ingot_bench(artifact, "--rounds", str(rounds), "--batch", "16")
    finally:
        shutil.rmtree(model, ignore_errors=True)
        shutil.rmtree(artifact, ignore_errors=True)
    phases = zip(LEAST, ran["phases"], strict=False)
    return {name: {key: phase[key] for key in ("tokens_per_second", "share")}
            for name, phase in phases}  # fmt: skip


def line(shape: str, found: dict[str, Any]) -> str:
    """A row of the table; what is below its limit has a star."""
    cells = (
        f"{found[name]['tokens_per_second']:>16.1f}{100 * found[name]['share']:>8.0f} %"
        + ("*" if found[name]["share"] < least else " ")
        for name, least in LEAST.items()
    )
    return f"{shape:<20}" + "".join(cells).rstrip()


def main(argv: list[str] | None = None) -> int:
    """Prints the table; 1 if a limit is missed."""
    args = _parser().parse_args(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    given = {"--quantize": args.quantize, "--target": args.target}
    options = [word for name, value in given.items() if value for word in (name, value)]
    print(HEADER)
    results = {}
    for shape in args.names or sorted(FAMILY_SHAPES):
        results[shape] = measure(shape, args.work, options, args.rounds)
        print(line(shape, results[shape]), flush=True)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1) + "\n")
    return int(
        any(f[name]["share"] < least for f in results.values() for name, least in LEAST.items())
    )


def _parser() -> argparse.ArgumentParser:
    doc = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m bench.families", description=doc)
    known = sorted(FAMILY_SHAPES)
    parser.add_argument(
        "names", nargs="*", type=one_of(known), metavar="NAME", help=", ".join(known)
    )
    parser.add_argument("--quantize", help="as of `ingot compile`")
    parser.add_argument("--target", help="as of `ingot compile`")
    parser.add_argument("--rounds", type=at_least(1), default=3)
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
