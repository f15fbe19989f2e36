"""Times other sizes of `ingot/targets/cpu/levels.py` on this machine, one after the other.

    python -m bench.tune_cpu [--target cpu:native] [--stored none,int8,int4] [--layers 6]

A model of the 0.6B shape with a few layers and made-up weights reads a prompt, decodes for 16
sequences and for one. Kernels of all sizes run in turns. A size has to take GAIN of the time of the
table's, in the geometric mean of the three, and to store the same bits.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.arguments import at_least, some_of
from bench.make_model import write_config
from bench.plans import plan_in
from bench.tuning.choose import GAIN
from ingot.artifact.host import usable_processors
from ingot.artifact.plan import Plan, aligned
from ingot.artifact.programs import LOGITS
from ingot.artifact.target import Target
from ingot.runtime.arrays import StepInputs
from ingot.runtime.batch import BatchBuilder
from ingot.runtime.devices.cpu_kernels import Kernels, ModelStruct, StepStruct, step_struct
from ingot.runtime.devices.memory import Region
from ingot.runtime.executor import outputs_of
from ingot.runtime.limits import ARITHMETIC, READ
from ingot.runtime.page_table import PageTable
from ingot.runtime.residence import Residence
from ingot.targets.cpu.generate import generate, weight_layouts
from ingot.targets.cpu.levels import KIB
from ingot.targets.cpu.toolchain import Tuning, build, compile_once, flags_of, tuning_of
from ingot.targets.cpu.weights import num_bytes

SHAPE = "qwen3-0.6b"
STORED = ("none", "int8", "int4")
ROUNDS = 7
# Bytes of a made-up weight: a number of middling size in every format.
FILL = 0x3C
PEAKS = 256 << 20  # bytes that are read to measure the bandwidth


@dataclass(frozen=True, slots=True)
class Phase:
    """A kind of step: so many sequences of so many new tokens, behind others."""

    name: str
    sequences: int
    tokens: int
    context: int


PHASES = (
    Phase("prefill 512", 1, 512, 0),
    Phase("16 at once", 16, 1, 40),
    Phase("decode", 1, 1, 64),
)
# The sizes that are tried, and what weights they matter for.
TRIED: Mapping[str, tuple[tuple[str, ...], Sequence[int]]] = {
    "core_cache": (STORED, [size * KIB for size in (256, 512, 1024, 2048)]),
    "bfloat16_rows": (("none",), (4, 5, 6)),
    "stream_cache": (STORED, (1, 2)),
    "float_ahead": (("none",), (2048, 4096, 6144, 8192)),
    "quad_rows": (("int8", "int4"), (4, 6, 8)),
    "int8_ahead": (("int8",), (1536, 2560, 4096, 6144, 8192)),
    "int4_ahead": (("int4",), (1536, 3072, 4096, 6144, 8192)),
    "unpacked_rows": (("int4",), (12, 16, 20, 32)),
}


class Trial:
    """The memory of a model that kernels of all sizes run on. A context manager."""

    def __init__(self, plan: Plan, target: Target) -> None:
        self._plan, self._target = plan, target
        self._sources = generate(plan, target)
        self._stack = ExitStack()
        sizes = [aligned(num_bytes(layout)) for layout in weight_layouts(plan)]
        self._weights = self._region(sum(sizes))
        np.frombuffer(self._weights.map, np.uint8)[:] = FILL
        begins = np.cumsum([0, *sizes[:-1]])
        self._num_pages = 1 + max(
            p.sequences * -(-(p.context + p.tokens) // plan.limits.page_size) for p in PHASES
        )
        self._arena = self._region(plan.memory.arena_bytes)
        self._caches = [self._region(size * self._num_pages) for size in plan.page_sizes()]
        self._vocabulary = outputs_of(plan, "the plan")[LOGITS]
        self._logits = self._region(16 * self._vocabulary * 4)
        self._addresses = [self._weights.address + int(begin) for begin in begins]
        self._inputs: list[StepInputs] = []  # that steps point to
        self._steps = {phase: self._step(phase) for phase in PHASES}

    def kernels(self, tuning: Tuning, folder: Path) -> Kernels:
        """Kernels of these sizes, open until the trial ends."""
        folder.mkdir(parents=True)
        for name, text in self._sources.items():
            (folder / name).write_text(text)
        out = folder / "kernels.so"
        build(folder, out, self._target, flags_of(tuning), compile_once)
        kernels = Kernels(out.read_bytes(), str(out))
        self._stack.enter_context(closing(kernels))
        pointers = [
            np.array(each, np.uintp)
            for each in (self._addresses, [cache.address for cache in self._caches])
        ]
        model = ModelStruct(
            weights=pointers[0].ctypes.data, caches=pointers[1].ctypes.data,
            arena=self._arena.address, num_pages=self._num_pages,
            num_threads=usable_processors(), watches_host=False,
        )  # fmt: skip
        kernels.open(model)  # which copies the pointers
        return kernels

    def run(self, kernels: Kernels, phase: Phase) -> tuple[float, str]:
        """Seconds of a step, and a hash of its logits."""
        step, num_rows = self._steps[phase]
        times = np.zeros(len(self._plan.kernels) + 1, np.int64)
        code = kernels.run_timed(step, times.ctypes.data)
        assert code == 0, f"the step was refused with code {code}"
        logits = self._logits.floats(num_rows, self._vocabulary)
        return float(times.sum()) * 1e-9, sha256(logits.tobytes()).hexdigest()

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _region(self, nbytes: int) -> Region:
        region = Region(nbytes, "a trial")
        self._stack.enter_context(closing(region))
        return region

    def _step(self, phase: Phase) -> tuple[StepStruct, int]:
        size = self._plan.limits.page_size
        inputs = StepInputs(self._plan)
        self._inputs.append(inputs)
        length = phase.context + phase.tokens
        residence = Residence(PageTable(-(-length // size) * phase.sequences, size))
        builder = BatchBuilder(inputs, residence)
        for row in range(phase.sequences):
            residence.grow(row, length)
            builder.append([7] * phase.tokens, phase.context, row, 1)
        struct = step_struct(inputs, [self._logits.address])
        return struct, inputs.num_rows


Times = Mapping[Phase, float]  # seconds


def timed(trial: Trial, candidates: Sequence[Kernels], rounds: int) -> list[tuple[Times, set[str]]]:
    """What each takes, by medians of rounds in turns, and the hashes of all that it computed."""
    found: list[dict[Phase, list[float]]] = [{phase: [] for phase in PHASES} for _ in candidates]
    hashes: list[set[str]] = [set() for _ in candidates]
    for phase in PHASES:
        for _ in range(rounds + 1):  # the first one only touches memory
            for each, kernels in enumerate(candidates):
                seconds, stored = trial.run(kernels, phase)
                found[each][phase].append(seconds)
                hashes[each].add(f"{phase.name} {stored}")
    return [
        ({phase: median(seconds[1:]) for phase, seconds in by_phase.items()}, stored)
        for by_phase, stored in zip(found, hashes, strict=True)
    ]


def mean_share(times: Times, base: Times) -> float:
    """The geometric mean of times, as shares of others."""
    return math.prod(times[phase] / base[phase] for phase in PHASES) ** (1 / len(PHASES))


def compared(
    trial: Trial, table: Tuning, field: str, values: Sequence[int], folder: Path, rounds: int
) -> Iterator[str]:
    """A line for each value of a size beside the table's, whose times are told first."""
    own = getattr(table, field)
    others = [value for value in values if value != own]
    tunings = [table, *(replace(table, **{field: value}) for value in others)]
    kernels = [trial.kernels(each, folder / f"{field}-{n}") for n, each in enumerate(tunings)]
    (base, expected), *rest = timed(trial, kernels, rounds)
    yield f"{field} {own}: " + ", ".join(f"{p.name} {base[p] * 1e3:.2f} ms" for p in PHASES)
    for value, (times, stored) in zip(others, rest, strict=True):
        shares = ", ".join(f"{times[p] / base[p]:.3f}" for p in PHASES)
        mean = mean_share(times, base)
        verdict = "  OTHER BITS" if stored != expected else "  better" if mean < GAIN else ""
        yield f"  {value:>8}: {shares}, mean {mean:.3f}{verdict}"


def ratio(kernels: Kernels) -> str:
    """What this machine computes and reads, in words."""
    region = Region(PEAKS, "measuring the memory")
    with closing(region):
        np.frombuffer(region.map, np.uint8)[:] = 1
        threads = usable_processors()
        read, *peaks = (
            max(kernels.measure(n, threads, region.address, region.nbytes) for _ in range(5))
            for n in range(READ, READ + 1 + len(ARITHMETIC))
        )
    each = zip(ARITHMETIC, peaks, strict=True)
    return f"reads {read / 1e9:.1f} GB/s; operations for each byte: " + ", ".join(
        f"{peak / read:.0f} in {kind}" for kind, peak in each
    )


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    from ingot.compiler.choose_targets import resolve_target

    target = resolve_target(args.target)
    table = tuning_of(target)
    print(f"{target.name}: {table}")
    with tempfile.TemporaryDirectory(prefix="ingot-tune-") as temporary:
        for stored in args.stored:
            folder = Path(temporary, stored)
            plan = _plan(folder / "model", stored, target, args.layers)
            with Trial(plan, target) as trial:
                print(f"{stored}: {ratio(trial.kernels(table, folder / 'ratio'))}", flush=True)
                for field in args.sizes:
                    formats, values = TRIED[field]
                    if stored in formats:
                        lines = compared(trial, table, field, values, folder, args.rounds)
                        print(*lines, sep="\n", flush=True)
    return 0


def _plan(folder: Path, stored: str, target: Target, layers: int) -> Plan:
    write_config(folder, SHAPE)
    file = folder / "config.json"
    config = json.loads(file.read_text()) | {"num_hidden_layers": layers}
    config.pop("layer_types", None)
    file.write_text(json.dumps(config))
    return plan_in(folder, target, quantize=stored, max_model_len=1024)


def _parser() -> argparse.ArgumentParser:
    doc = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m bench.tune_cpu", description=doc)
    add: Any = parser.add_argument
    add("--target", default="cpu:native", help="cpu:native by default")
    add(
        "--stored",
        type=some_of(STORED),
        default=STORED,
        help=f"as --quantize says ({','.join(STORED)})",
    )
    add("--sizes", type=some_of(TRIED), default=tuple(TRIED), help=",".join(TRIED))
    add("--layers", type=at_least(1), default=6, help="of the model (6)")
    add("--rounds", type=at_least(1), default=ROUNDS, help=f"of each kind of step ({ROUNDS})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
