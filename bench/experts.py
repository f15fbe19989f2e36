"""Times the kernels of experts in a shape beside what they must read and compute.

    python -m bench.experts [--stored int4] [--rows 1 16 512] [--layers 4] [--threads 2]

Layers of experts alone, in the shape of Qwen3-30B-A3B by default, with random weights, run as a
step of a model runs them. A figure is the median over steps, each with tokens of its own.
"""

from __future__ import annotations

import argparse
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch

from ingot.artifact.cost import StepShape
from ingot.artifact.formats import Format, Storage
from ingot.artifact.host import host_flags
from ingot.artifact.plan import Buffer, Instruction, Limits, Plan
from ingot.artifact.programs import STEP
from ingot.artifact.spec import Spec
from ingot.artifact.step_cost import kernel_costs
from ingot.artifact.target import Target
from ingot.artifact.tensors import read_header
from ingot.compiler.quantization.search import quantize_rows
from ingot.ops.scaled import Scaled
from ingot.runtime.arrays import StepInputs
from ingot.runtime.devices.cpu import stacks_end, weight_offsets
from ingot.runtime.devices.cpu_kernels import Kernels, ModelStruct, step_struct
from ingot.runtime.devices.memory import Region, ask_for_huge_pages, map_address
from ingot.runtime.limits import ARITHMETIC, READ, MachineLimits
from ingot.targets.cpu.levels import native_target
from ingot.targets.target import kind_of

VOCABULARY, MOST_ROWS = 4096, 512
STORED = {"int4": Storage(4, 32), "int8": Storage(8, 128), "bfloat16": None, "float32": None}


@dataclass(frozen=True)
class Shape:
    """Hidden size, inner size of an expert, experts, and how many a row picks."""

    hidden: int = 2048
    inner: int = 768
    experts: int = 128
    picks: int = 8


def main() -> None:
    args = _parser().parse_args()
    shape = Shape(args.hidden, args.inner, args.experts, args.picks)
    target = native_target(host_flags())
    plan = make_plan(shape, args.layers, args.stored)
    with TemporaryDirectory(dir=args.work) as name:
        folder = Path(name)
        placed = build(plan, target, folder)
        with Layers(placed, folder, args.threads) as layers:
            for rows in args.rows:
                print(layers.line(rows, args.steps), flush=True)


def make_plan(shape: Shape, layers: int, stored: str) -> Plan:
    """Tokens looked up, and layers of a router and experts over them."""
    storage, dtype = STORED[stored], "float32" if STORED[stored] else stored
    plain = Format(dtype)  # type: ignore[arg-type]
    buffers, instructions = [], []

    def weight(name: str, *dims: int, form: Format = plain) -> str:
        buffers.append(Buffer(name=name, format=form, shape=dims, kind="weight"))
        return name

    def call(op: str, out: str, *columns: int, form: str = "float32", **given: object) -> str:
        inputs = {k: v for k, v in given.items() if isinstance(v, str) and k not in WORDS}
        attrs = {k: v for k, v in given.items() if k not in inputs}
        made = Format(form)  # type: ignore[arg-type]
        buffers.append(Buffer(name=out, format=made, shape=("N", *columns), kind="arena"))
        instructions.append(
            Instruction(op=op, inputs=inputs, outputs={"out": out}, attrs=attrs, origin=out)  # type: ignore[arg-type]
        )
        return out

    table = weight("table", VOCABULARY, shape.hidden)
    x = call("embedding", "x", shape.hidden, tokens="tokens", weight=table)
    for i in range(layers):
        is_narrow = dtype != "float32"
        narrow = call("cast", f"narrow{i}", shape.hidden, form=dtype, x=x) if is_narrow else x
        router = weight(f"router{i}", shape.experts, shape.hidden)
        logits = call("linear", f"logits{i}", shape.experts, x=narrow, weight=router)
        rule = {"scoring": "softmax", "top_k": shape.picks, "normalise": True, "scale": 1.0}
        rule |= {"groups": 1, "kept_groups": 1, "group_score": "max", "eps": 0.0, "narrow": False}
        shares = call("route", f"shares{i}", shape.experts, logits=logits, **rule)
        forms = [storage.of(n) if storage else plain for n in (shape.hidden, shape.inner)]
        rows = 2 * shape.inner
        gate_up = weight(f"{i}.gate_up", shape.experts, rows, shape.hidden, form=forms[0])
        down = weight(f"{i}.down", shape.experts, shape.hidden, shape.inner, form=forms[1])
        picked = {"shares": shares, "top_k": shape.picks}
        inner = call(
            "expert_gate", f"inner{i}", shape.picks, shape.inner, form=dtype,
            x=narrow, weight=gate_up, kind="silu", limit=0.0, **picked,
        )  # fmt: skip
        total = call("expert_sum", f"sum{i}", shape.hidden, x=inner, weight=down, **picked)
        x = call("add", f"x{i}", shape.hidden, x=x, y=total)
    limits = Limits(
        max_model_len=MOST_ROWS, max_num_seqs=1, max_num_batched_tokens=MOST_ROWS,
        max_logit_rows=1, page_size=16,
    )  # fmt: skip
    return Plan(
        limits=limits, spec=Spec(inputs=STEP.inputs_for("paged")), buffers=tuple(buffers),
        instructions=tuple(instructions),
    )  # fmt: skip


WORDS = ("scoring", "group_score", "kind")


def build(plan: Plan, target: Target, folder: Path) -> Plan:
    """Writes kernels.so and the weights of a plan; returns the plan as the target places it."""
    kind = kind_of(target)
    placed = kind.place(kind.group(kind.rewrite(plan))[0])
    for name, text in kind.sources(placed, target).items():
        (folder / name).write_text(text)
    kind.build(folder, folder / "kernels.so", target)
    made = RandomWeights(placed)
    kind.pack(folder / "weights.safetensors", placed, made.read, made)
    return placed


class RandomWeights:
    """One random matrix for all of a shape: what is read takes as long, whatever it holds."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.made: dict[object, torch.Tensor | Scaled] = {}

    def buffer(self, name: str) -> Buffer:
        known = self.plan.by_name
        return known[name] if name in known else known[name.rpartition(".")[0]]

    def read(self, name: str) -> torch.Tensor:
        made = self._made(self.buffer(name))
        assert isinstance(made, torch.Tensor)
        return made

    def matrix(self, name: str) -> Scaled:
        made = self._made(self.buffer(name))
        assert isinstance(made, Scaled)
        return made

    def _made(self, buffer: Buffer) -> torch.Tensor | Scaled:
        shape = tuple(map(int, buffer.shape[-2:]))
        key = (shape, buffer.format)
        if key not in self.made:
            drawn = torch.randn(shape) / shape[-1] ** 0.5
            scaled = buffer.format.is_scaled
            self.made[key] = quantize_rows(drawn, buffer.format) if scaled else drawn
        return self.made[key]


class Layers:
    """The kernels of a plan, opened, with so many pages or records. A context manager."""

    def __init__(self, plan: Plan, folder: Path, threads: int, num_pages: int = 1) -> None:
        self.plan, self.threads = plan, threads
        self.kernels = Kernels((folder / "kernels.so").read_bytes(), "kernels.so")
        with (folder / "weights.safetensors").open("rb") as file:
            header = read_header(file.fileno(), file.name)
            flags = mmap.MAP_PRIVATE | mmap.MAP_POPULATE
            self.map = mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ)
        ask_for_huge_pages(self.map, stacks_end(plan, header))
        self.arena = Region(plan.memory.arena_bytes, "the arena")
        self.region = Region(256 << 20, "measuring the memory")
        self.region.floats(1, self.region.nbytes // 4).fill(1)
        base = map_address(self.map)
        offsets = [base + offset for offset in weight_offsets(plan, header, "weights")]
        weights = np.array(offsets, np.int64)
        self.pages = [Region(a.nbytes * num_pages, "states") for a in plan.state_arrays()]
        caches = np.array([region.address for region in self.pages], np.int64)
        model = ModelStruct(
            weights=weights.ctypes.data, caches=caches.ctypes.data, arena=self.arena.address,
            num_pages=num_pages, num_threads=threads, watches_host=0,
        )  # fmt: skip
        self.kernels.open(model)
        self.inputs = StepInputs(plan)
        self.times = np.zeros(len(plan.kernels) + 1, np.int64)

    def line(self, rows: int, steps: int) -> str:
        """What the kernels of experts take in a step of so many rows, beside their limit."""
        limits, found = self.limits(), list[list[float]]()
        for index in range(steps):
            found.append(self.experts(rows, index))
            limits = limits.best(self.limits()) if index % 8 == 7 else limits
        costs = kernel_costs(self.plan, StepShape(new_tokens=rows, context=rows))
        least = [
            limits.seconds(cost)
            for cost, kernel in zip(costs, self.plan.kernels, strict=True)
            if "expert" in kernel.kernel
        ]
        gates, sums = ([sum(times[i::2]) for times in found] for i in range(2))
        both = [a + b for a, b in zip(gates, sums, strict=True)]
        words = [
            f"{name} {median(times) * 1e6:.0f} us, {sum(least[i::step]) / median(times):.0%} of "
            f"limit ({sum(least[i::step]) / min(times):.0%} at best)"
            for name, times, i, step in (
                *(("gate and up", gates, 0, 2), ("down", sums, 1, 2)),
                ("both", both, 0, 1),
            )
        ]
        return f"{rows} rows, {self.threads} threads: {'; '.join(words)}"

    def experts(self, rows: int, seed: int) -> list[float]:
        """Seconds of each kernel of experts in one step of random tokens."""
        rng = np.random.default_rng(seed)
        self.inputs["tokens"][:rows] = rng.integers(0, VOCABULARY, rows)
        self.inputs.num_tokens, self.inputs.num_seqs = rows, 1
        return [seconds for kernel, seconds in self.run() if "expert" in kernel]

    def run(self) -> list[tuple[str, float]]:
        """The kernels of a step of the inputs, and the seconds of each."""
        step = step_struct(self.inputs, [])
        self.kernels.run_timed(step, self.times.ctypes.data)
        names = (kernel.kernel for kernel in self.plan.kernels)
        return [(n, t * 1e-9) for n, t in zip(names, self.times[:-1].tolist(), strict=True)]

    def limits(self) -> MachineLimits:
        place = self.region.address, self.region.nbytes
        rates = [self.kernels.measure(n, self.threads, *place) for n in range(len(ARITHMETIC) + 1)]
        peaks = dict(zip(ARITHMETIC, rates[READ + 1 :], strict=True))
        return MachineLimits(
            threads=self.threads, read_bytes_per_second=rates[READ], operations_per_second=peaks
        )

    def __enter__(self) -> Layers:
        return self

    def __exit__(self, *_: object) -> None:
        self.kernels.close()
        for region in (*self.pages, self.arena, self.region):
            region.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stored", choices=STORED, default="int4")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, MOST_ROWS])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--work", type=Path, help="a folder on a disk that holds the weights")
    for name, value in vars(Shape()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser


if __name__ == "__main__":
    main()
