"""Measures the sampler: microseconds of one row, beside the time to read that row.

    python -m bench.sampling [--vocab 152064] [--target cpu:native] [--json FILE]

The kernels are those that any artifact for the target has, built without a model. A row lies in
the cache, as the model's head has just written it; the note is about
rows that follow one another.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.figure import Figure, machine, show
from ingot.artifact.host import host_flags
from ingot.artifact.select import ABI
from ingot.artifact.target import Target
from ingot.runtime.devices.cpu_kernels import Kernels, ModelStruct
from ingot.runtime.devices.sampler import Sampler
from ingot.runtime.limits import READ
from ingot.runtime.params import SamplingParams
from ingot.runtime.sequence import SamplingState
from ingot.targets.cpu.generate import step_sources
from ingot.targets.cpu.levels import native_target
from ingot.targets.cpu.toolchain import build
from ingot.targets.target import target_named

ROWS = 128  # together far larger than any second-level cache
TRIES = 400
SIMPLE, CUT = 100.0, 250.0  # microseconds that the project promises
CASES: tuple[tuple[str, SamplingParams, float | None], ...] = (
    ("greedy", SamplingParams(temperature=0), SIMPLE),
    ("temperature", SamplingParams(temperature=0.8), SIMPLE),
    ("top_k", SamplingParams(temperature=0.8, top_k=50), CUT),
    ("top_k and top_p", SamplingParams(temperature=0.8, top_k=50, top_p=0.95), CUT),
    ("top_k 2000 and top_p", SamplingParams(top_k=2000, top_p=0.9), CUT),
    ("top_p alone", SamplingParams(temperature=0.8, top_p=0.95), CUT),
    ("min_p", SamplingParams(temperature=0.8, min_p=0.05), CUT),
    ("penalties of 1000 tokens", SamplingParams(repetition_penalty=1.1, top_k=50), None),
    ("logprobs 5", SamplingParams(temperature=0.8, logprobs=5), None),
)


@dataclass
class Asked:
    """A sequence as the sampler sees it."""

    params: SamplingParams
    token_ids: list[int]
    num_prompt: int = 0
    key: int = 0
    seed: int = 0
    sampling: SamplingState = field(init=False)

    def __post_init__(self) -> None:
        self.sampling = SamplingState(self.params)


def main() -> int:
    """Prints the table; 1 if a limit is missed."""
    args = _parser().parse_args()
    target = target_named(args.target) if args.target else native_target(host_flags())
    print(f"{machine()}, {target.name}, vocabulary {args.vocab}\n")
    return show(measure(args.vocab, target), args.json)


def measure(vocab: int, target: Target) -> Iterator[Figure]:
    """All figures, as they are measured."""
    rows = logits_of(vocab, ROWS)
    row = rows[:1].copy()
    kernels = open_kernels(target, 1)
    cached, memory = (row_read(kernels, array) for array in (row, rows))
    yield Figure(
        "read limit of a row, in the cache", cached, "us", note=f"one after another {memory:.0f}"
    )
    sampler = Sampler(vocab, kernels)
    for name, params, limit in CASES:
        asked = Asked(params, [i * 37 % vocab for i in range(1000)], 500)
        best = min(timed(sampler, row, [asked]) for _ in range(TRIES))
        cold = min(timed(sampler, rows[i : i + 1], [asked]) for i in range(ROWS))
        note = f"{best / cached:.1f} x the read limit; one after another {cold:.0f}"
        yield Figure(name, best, "us", limit, note=note)
    both = Sampler(vocab, open_kernels(target, 2))
    for name, params, _ in CASES[:4]:
        batch = [Asked(params, [1, 2, 3], key=i) for i in range(64)]
        best = min(timed(both, rows[:64], batch) for _ in range(10)) / 64
        yield Figure(f"{name}, each of 64 rows, 2 threads", best, "us")


def row_read(kernels: Kernels, rows: np.ndarray) -> float:
    """Microseconds in which one thread reads a row, when it reads all of them again and again."""
    rate = max(kernels.measure(READ, 1, rows.ctypes.data, rows.nbytes) for _ in range(TRIES // 10))
    return rows[0].nbytes / rate * 1e6


def timed(sampler: Sampler, rows: np.ndarray, asked: list[Asked]) -> float:
    """Microseconds of one call, Python's part included."""
    began = time.perf_counter()
    sampler.sample(rows, asked)
    return (time.perf_counter() - began) * 1e6


def logits_of(vocab: int, rows: int) -> np.ndarray:
    """Rows like a language model's: a wide bulk, and a few tokens far above it."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2.5, (rows, vocab)).astype(np.float32)
    likely = rng.integers(0, vocab, (rows, 60))
    np.put_along_axis(logits, likely, rng.normal(13, 2.5, likely.shape).astype(np.float32), 1)
    return logits


def open_kernels(target: Target, threads: int) -> Kernels:
    with tempfile.TemporaryDirectory() as folder:
        nothing = dict.fromkeys(
            ("num_kernels", "num_weights", "num_caches", "arena_bytes", "vocabulary"), 0
        )
        sources = step_sources(target=target.name, body="", abi=ABI, plan=0, **nothing)
        for name, text in sources.items():
            (Path(folder) / name).write_text(text)
        build(Path(folder), Path(folder) / "kernels.so", target)
        kernels = Kernels((Path(folder) / "kernels.so").read_bytes(), "kernels.so")
    kernels.open(ModelStruct(num_pages=0, num_threads=threads))
    return kernels


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.sampling", description="The sampler.")
    parser.add_argument("--vocab", type=int, default=152064)
    parser.add_argument("--target", help="cpu:x86-64-v3, for example; default: this host's")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
