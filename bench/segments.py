"""Times attention over segments beside attention over pages and what the machine can multiply.

    python -m bench.segments [--dtype bfloat16] [--lengths 1024 256] [--size 72] [--threads 2]

A step of segments of one length, up to so many rows, with random queries, keys and values: once
causal over pages, once causal over segments, and once both ways, as encoders and vision towers
have it. A figure is the median over steps. Writing and packing of keys counts in both.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
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
from ingot.targets.cpu.levels import native_target

VOCABULARY, PAGE = 512, 16


@dataclass(frozen=True)
class Shape:
    """Query heads, KV heads, and columns of a head; those of a tower of PaddleOCR-VL."""

    heads: int = 16
    kv_heads: int = 16
    size: int = 72


def main() -> None:
    args = _parser().parse_args()
    shape = Shape(args.heads, args.kv_heads, args.size)
    plan = make_plan(shape, args.dtype, args.rows)
    with TemporaryDirectory() as name:
        folder = Path(name)
        placed = build(plan, native_target(host_flags()), folder)
        with Layers(placed, folder, args.threads, num_pages=args.rows // PAGE) as layers:
            for length in args.lengths:
                print(line(layers, length, args.rows, args.steps), flush=True)


def make_plan(shape: Shape, dtype: str, rows: int) -> Plan:
    """Rows of queries, keys and values, looked up; and three attentions to them."""
    form, plain = Format(dtype), {"scale": shape.size**-0.5, "window": 0, "softcap": 0.0}  # type: ignore[arg-type]
    counts = {"q": shape.heads, "k": shape.kv_heads, "v": shape.kv_heads}
    columns = sum(counts.values()) * shape.size
    made = Buffer(name="made", format=form, shape=("N", columns), kind="arena")
    table = Buffer(name="table", format=form, shape=(VOCABULARY, columns), kind="weight")
    buffers, first = [table, made], 0
    for name, count in counts.items():
        view = Buffer(name=name, format=form, shape=("N", count, shape.size), kind="view")
        buffers.append(replace(view, base="made", offset=first, row_stride=columns))
        first += count * shape.size
    instructions = [
        Instruction(
            op="embedding", inputs={"tokens": "tokens", "weight": "table"},
            outputs={"out": "made"}, attrs={}, origin="rows",
        )
    ]  # fmt: skip
    caches = {"k_cache": "k_cache", "v_cache": "v_cache"}

    def call(op: str, inputs: dict[str, str], out: str = "", **attrs: object) -> None:
        if out:
            buffers.append(replace(buffers[2], name=out, kind="arena", base="", offset=0))
            buffers[-1] = replace(buffers[-1], row_stride=0)
        outputs = {"out": out} if out else {}
        instructions.append(
            Instruction(op=op, inputs=inputs, outputs=outputs, attrs=attrs, origin=out or op)  # type: ignore[arg-type]
        )

    kv = {"k": "k", "v": "v"}
    call("kv_write", {**kv, "slots": "slots", **caches})
    tables = {"spans": "spans", "page_table": "page_table"}
    words = {**plain, "value_size": 0, "rounds_queries": False}
    call("paged_attention", {"q": "q", **caches, **tables}, "paged", **words)
    for out, causal in (("causal", True), ("both", False)):
        given = {"q": "q", **kv, "spans": "spans"}
        call("segment_attention", given, out, **plain, causal=causal)
    states = [State(name=n, format=form, record=(shape.kv_heads, shape.size)) for n in caches]
    limits = Limits(
        max_model_len=rows, max_num_seqs=rows, max_num_batched_tokens=rows, max_logit_rows=1,
        page_size=PAGE,
    )  # fmt: skip
    return Plan(
        limits=limits, spec=Spec(inputs=STEP.inputs, states=tuple(states)), buffers=tuple(buffers),
        instructions=tuple(instructions),
    )  # fmt: skip


def line(layers: Layers, length: int, rows: int, steps: int) -> str:
    """What each attention takes in a step of segments of that length, beside its limit."""
    count = lay_out(layers, length, rows)
    limits, found = layers.limits(), list[Sequence[float]]()
    for index in range(steps):
        write, paged, *others = (seconds for _, seconds in layers.run()[1:])
        found.append((write + paged, *others))
        limits = limits.best(layers.limits()) if index % 8 == 7 else limits
    shape = StepShape(sequences=count, new_tokens=length, context=length)
    costs = kernel_costs(layers.plan, shape)[2:]
    operations = [replace(cost, weight_bytes=0, kv_bytes=0) for cost in costs]
    shares = [
        limits.seconds(cost) / median(times)
        for cost, times in zip(operations, zip(*found, strict=True), strict=True)
    ]
    names = ("over pages", "over segments", "both ways")
    words = [
        f"{name} {median(times) * 1e3:.2f} ms, {share:.0%} of limit ({share / shares[0]:.2f})"
        for name, times, share in zip(names, zip(*found, strict=True), shares, strict=True)
    ]
    return f"{count} segments of {length} rows, {layers.threads} threads: {'; '.join(words)}"


def lay_out(layers: Layers, length: int, rows: int) -> int:
    """Makes a step of as many segments as there are rows for, in pages of their own."""
    count, inputs = rows // length, layers.inputs
    pages = -(-length // PAGE)
    count = min(count, rows // PAGE // pages)
    inputs.num_tokens, inputs.num_seqs = count * length, count
    inputs["tokens"][: count * length] = np.random.default_rng(0).integers(
        0, VOCABULARY, count * length
    )
    for s in range(count):
        places, own = np.arange(length), s * pages + np.arange(pages)
        inputs["spans"][s] = s * length, (s + 1) * length, 0
        inputs["page_table"][s, :pages] = own
        inputs["slots"][s * length : (s + 1) * length] = own[places // PAGE] * PAGE + places % PAGE
    return count


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 256, 64])
    parser.add_argument("--rows", type=int, default=1024, help="of the largest step")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    for name, value in vars(Shape()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    return parser


if __name__ == "__main__":
    main()
