"""Times mixers that keep one record of a sequence beside what the machine can compute and read.

    python -m bench.states [--shapes wkv7 delta mamba2 mamba1] [--rows 512] [--sequences 1 32]

Layers of a mixer alone, in the shape of a published model: once over the rows of a prompt, and once
over one row of each of so many sequences, whose records no cache holds. A figure is the median over
steps, and beside it the best. Computing limits a prompt, and memory a decode, since each record
leaves it and enters it again. A scan of channels computes an exponential for each element and
token: no count of multiply-adds tells what that takes, so its nanoseconds are shown.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from bench.experts import Layers, build
from ingot.artifact.cost import StepShape
from ingot.artifact.formats import Format
from ingot.artifact.host import host_flags
from ingot.artifact.plan import Buffer, Instruction, Limits, Plan
from ingot.artifact.programs import STEP
from ingot.artifact.spec import Spec, State
from ingot.artifact.step_cost import kernel_costs
from ingot.artifact.target import Target
from ingot.targets.cpu.levels import native_target
from ingot.targets.target import target_named

VOCABULARY, FORM = 64, Format("float32")
LAYERS = 4  # with records of their own, so that none is in a cache when its turn comes
STATES_BYTES = 256 << 20


@dataclass(frozen=True)
class Shape:
    """A mixer: its arguments with a row for each token, and the shape of a record."""

    op: str
    rows: Mapping[str, tuple[int, ...]]
    record: tuple[int, int]
    weights: Mapping[str, tuple[int, ...]]
    attrs: Mapping[str, str]


def recurrence(
    rule: str, groups: int, heads: int, size: int, width: int, *, by_key: bool = False
) -> Shape:
    rows: dict[str, tuple[int, ...]] = {
        "q": (groups, size),
        "k": (groups, size),
        "v": (heads, width),
        "decay": (heads, size) if by_key else (heads,),
    }
    if rule == "low_rank":
        rows |= {"a": (heads, size), "b": (heads, size)}
    else:
        rows |= {"beta": (heads,)}
    return Shape("recurrence", rows, (heads * size, width), {}, {"rule": rule})


def scan(channels: int, depth: int) -> Shape:
    rows = {"x": (channels,), "dt": (channels,), "b": (depth,), "c": (depth,)}
    weights = {"rate": (depth, channels), "skip": (channels,)}
    return Shape("selective_scan", rows, (depth, channels), weights, {})


# RWKV-7 1.5B, Qwen3.5-35B-A3B, Kimi-Linear, Mamba-2 2.7B with 8 groups, Granite 4 h-tiny, Mamba.
SHAPES = {
    "wkv7": recurrence("low_rank", 32, 32, 64, 64, by_key=True),
    "delta": recurrence("delta", 16, 32, 128, 128),
    "delta_by_key": recurrence("delta", 32, 32, 128, 128, by_key=True),
    "mamba2": recurrence("add", 8, 128, 128, 64),
    "granite": recurrence("add", 1, 48, 256, 64),
    "mamba1": scan(8192, 16),
}


def main() -> None:
    args = _parser().parse_args()
    target = target_named(args.target) if args.target else native_target(host_flags())
    for name in args.shapes:
        for text in lines(SHAPES[name], target, args):
            print(f"{name}: {text}, {args.threads} threads", flush=True)


def lines(shape: Shape, target: Target, args: argparse.Namespace) -> Iterator[str]:
    plan = make_plan(shape, max(args.rows, *args.sequences))
    with TemporaryDirectory() as name:
        folder = Path(name)
        placed = build(plan, target, folder)
        slots = max(*args.sequences, 1 + STATES_BYTES // plan.slot_bytes)
        with Layers(placed, folder, args.threads, num_pages=slots) as layers:
            yield line(layers, 1, args.rows, args.steps, slots)
            for sequences in args.sequences:
                yield line(layers, sequences, 1, args.steps, slots)


def make_plan(shape: Shape, rows: int) -> Plan:
    """Rows that are looked up, and layers of a mixer over them."""
    columns = sum(map(np.prod, shape.rows.values()))
    made = Buffer(name="made", format=FORM, shape=("N", int(columns)), kind="arena")
    table = replace(made, name="table", shape=(VOCABULARY, int(columns)), kind="weight")
    buffers, first = [table, made], 0
    for name, dims in shape.rows.items():
        view = Buffer(name=name, format=FORM, shape=("N", *dims), kind="view", base="made")
        buffers.append(replace(view, offset=first, row_stride=int(columns)))
        first += int(np.prod(dims))
    for name, dims in shape.weights.items():
        buffers.append(Buffer(name=name, format=FORM, shape=dims, kind="weight"))
    lookup = Instruction(
        op="embedding", inputs={"tokens": "tokens", "weight": "table"}, outputs={"out": "made"},
        attrs={}, origin="rows",
    )  # fmt: skip
    instructions, states = [lookup], []
    inputs = {name: name for name in (*shape.rows, *shape.weights, "spans", "records")}
    result = shape.rows["v" if "v" in shape.rows else "x"]
    for i in range(LAYERS):
        states.append(State(name=f"state{i}", kind="slotted", format=FORM, record=shape.record))
        out = Buffer(name=f"out{i}", format=FORM, shape=("N", *result), kind="arena")
        buffers.append(out)
        instructions.append(
            Instruction(
                op=shape.op,
                inputs={**inputs, "state": f"state{i}"},
                outputs={"out": out.name},
                attrs=dict(shape.attrs),
                origin=out.name,
            )
        )
    limits = Limits(
        max_model_len=rows, max_num_seqs=rows, max_num_batched_tokens=rows, max_logit_rows=1,
        page_size=16,
    )  # fmt: skip
    spec = Spec(inputs=STEP.inputs_for("slotted"), states=tuple(states))
    return Plan(limits=limits, spec=spec, buffers=tuple(buffers), instructions=tuple(instructions))


def line(layers: Layers, sequences: int, length: int, steps: int, slots: int) -> str:
    """What a layer takes in a step of so many sequences of so many rows, beside its limit."""
    limits, found = layers.limits(), list[Sequence[float]]()
    for index in range(steps):
        lay_out(layers, sequences, length, first=index * sequences, slots=slots)
        found.append([seconds for _, seconds in layers.run()[1:]])
        limits = limits.best(layers.limits()) if index % 8 == 7 else limits
    shape = StepShape(sequences=sequences, new_tokens=length, context=length + 1)
    cost = kernel_costs(layers.plan, shape)[1]
    usual, least = median(map(median, found)), min(map(min, found))
    work, limit = sum(cost.operations.values()), limits.seconds(cost)
    by = "computing" if limit == limits.arithmetic_seconds(cost) else "memory"
    words = [
        f"{sequences} x {length} rows {usual * 1e6:.0f} us a layer",
        f"{limit / usual:.0%} of the limit by {by} ({limit / least:.0%} at best)",
        f"at best {work / least * 1e-9:.1f} GFLOP/s and {cost.num_bytes / least * 1e-9:.1f} GB/s",
    ]
    if layers.plan.instructions[-1].op == "selective_scan":
        words.append(f"{least * layers.threads / (work / 6) * 1e9:.2f} ns an exponential")
    return ", ".join(words)


def lay_out(layers: Layers, sequences: int, length: int, first: int, slots: int) -> None:
    """Makes a step of sequences that go on from records which no step has touched lately."""
    inputs, count = layers.inputs, sequences * length
    inputs.num_tokens, inputs.num_seqs = count, sequences
    inputs["tokens"][:count] = np.random.default_rng(0).integers(0, VOCABULARY, count)
    for s in range(sequences):
        inputs["spans"][s] = s * length, (s + 1) * length, 1
        inputs["records"][s] = (first + s) % slots


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--rows", type=int, default=512, help="of the prompt")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 32], help="that decode")
    parser.add_argument("--target", help="by default the best one that this host runs")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    return parser


if __name__ == "__main__":
    main()
