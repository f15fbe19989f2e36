"""Chains of kernels under the thread sanitizer."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from ingot.artifact.plan import Buffer, Instruction, MemoryPlan, Plan
from ingot.artifact.target import Target
from ingot.targets.cpu.generate import generate
from tests.targets.cpu.native import TARGETS, Memory, aligned
from tests.targets.cpu.sanitized import build_driver
from tests.targets.cpu.units import INPUT_SHAPES, LIMITS, make_step

# Of three threads.
FEW = [(1, 41), (13, 13), (7, 90)]
SOME = [(1, 41), (13, 13), (50, 90)]
MANY = [(1, 41), (100, 113), (50, 90)]
SIZES = pytest.mark.parametrize("sequences", [FEW, SOME, MANY], ids=["few", "some", "many"])
TARGET = TARGETS[0]


def chain() -> Plan:
    """A norm, two linears with a gate between them, and the norm after: rows and columns cross."""
    size, inner = 48, 80
    shapes = {"x": size, "h": size, "gate": inner, "m": inner, "y": size, "g": size, "s": size}
    buffers = [
        Buffer(name=name, dtype="int32", shape=shape, kind="input")
        for name, shape in INPUT_SHAPES.items()
    ]
    weights = {"norm": (size,), "up": (inner, size), "down": (size, inner)}
    buffers += [
        Buffer(name=name, dtype="float32", shape=shape, kind="weight")
        for name, shape in weights.items()
    ]
    offset = 0
    for name, columns in shapes.items():
        # `y` takes the place of `h`: memory that other threads may still be reading.
        at = 4 * LIMITS.max_num_batched_tokens * size if name == "y" else offset
        shape = ("N", columns)
        buffers.append(Buffer(name=name, dtype="float32", shape=shape, kind="arena", offset=at))
        offset += 4 * LIMITS.max_num_batched_tokens * columns
    norm = {"eps": 1e-5, "offset": 0.0}
    steps = (
        ("rms_norm", {"x": "x", "weight": "norm"}, {"out": "h"}, norm),
        ("linear", {"x": "h", "weight": "up"}, {"out": "gate"}, {}),
        ("activation", {"x": "gate"}, {"out": "m"}, {"kind": "silu"}),
        ("linear", {"x": "m", "weight": "down"}, {"out": "y"}, {}),
        ("add_rms_norm", {"x": "y", "residual": "x", "weight": "norm"},
         {"out": "g", "sum": "s"}, norm),
    )  # fmt: skip
    return Plan(
        limits=LIMITS,
        buffers=tuple(buffers),
        instructions=tuple(
            Instruction(op=op, inputs=inputs, outputs=outputs, attrs=dict(attrs), origin="chain")
            for op, inputs, outputs, attrs in steps
        ),
        memory=MemoryPlan(arena_bytes=offset, slots=()),
    )


def heads_chain(product: bool = False) -> Plan:
    """Keys written and attended to, by three KV heads, and a product of the results.

    With `product` keys are written by one, too.
    """
    heads, kv_heads, size, columns = 6, 3, 64, 96
    made = {"x": (16,)} if product else {"q": (heads, size), "k": (kv_heads, size),
                                         "v": (kv_heads, size)}  # fmt: skip
    shapes = {**made, "t": (size,), "turned": (heads, size), "o": (heads, size), "p": (columns,),
              "m": (columns,)}  # fmt: skip
    buffers = [
        Buffer(name=name, dtype="int32", shape=shape, kind="input")
        for name, shape in INPUT_SHAPES.items()
    ]
    weights = {"out": (columns, heads * size)}
    if product:
        weights["in"] = ((heads + 2 * kv_heads) * size, 16)
    buffers += [
        Buffer(name=name, dtype="float32", shape=shape, kind="weight")
        for name, shape in weights.items()
    ]
    offset = 0
    for name, inner in shapes.items():
        shape = ("N", *inner)
        buffers.append(Buffer(name=name, dtype="float32", shape=shape, kind="arena", offset=offset))
        offset += 4 * LIMITS.max_num_batched_tokens * math.prod(inner)
    cached = {"k_cache": "k_cache", "v_cache": "v_cache"}
    buffers += [
        Buffer(name=name, dtype="float32", shape=(0, kv_heads, 16, size), kind="cache")
        for name in cached
    ]
    tables = {name: name for name in ("query_start", "context_lens", "page_table")}
    inputs = {name: name for name in (*made, "slots")}
    if product:
        inputs["weight"] = "in"
    write = Instruction(
        op="linear_rope_kv_write" if product else "rope_kv_write",
        inputs={**inputs, "table": "t", **cached}, outputs={"out": "turned"}, attrs={},
        origin="write",
    )  # fmt: skip
    read = Instruction(
        op="paged_attention", inputs={"q": "turned", **cached, **tables}, outputs={"out": "o"},
        attrs={"scale": 0.25}, origin="read",
    )  # fmt: skip
    multiply = Instruction(
        op="linear", inputs={"x": "o", "weight": "out"}, outputs={"out": "p"}, attrs={},
        origin="multiply",
    )  # fmt: skip
    activate = Instruction(
        op="activation", inputs={"x": "p"}, outputs={"out": "m"}, attrs={"kind": "silu"},
        origin="activate",
    )  # fmt: skip
    return Plan(
        limits=LIMITS,
        buffers=tuple(buffers),
        instructions=(write, read, multiply, activate),
        memory=MemoryPlan(arena_bytes=offset, slots=()),
    )


def run_chain(
    folder: Path,
    source: str,
    sequences: list[tuple[int, int]],
    plan: Plan | None = None,
    threads: int = 3,
) -> tuple[int, str]:
    plan = plan or chain()
    driver = build_driver(folder, source, TARGET, "thread")
    weights = [aligned(768 * 80 * 4) for _ in plan.of_kind("weight")]
    step = make_step(torch.Generator().manual_seed(0), sequences)
    caches = [aligned(size * step.num_pages) for size in plan.page_sizes()]
    memory = Memory(weights, caches, aligned(plan.memory.arena_bytes), step.num_pages)
    done = driver.run(memory, step.inputs, threads=threads)
    return done.returncode, done.stderr


@SIZES
def test_threads_do_not_race(tmp_path: Path, sequences: list[tuple[int, int]]) -> None:
    source = generate(chain(), Target.parse(TARGET)).source
    code, errors = run_chain(tmp_path, source, sequences)
    assert code == 0, errors


@pytest.mark.parametrize("sequences", [FEW, SOME])
def test_without_barriers_they_do(tmp_path: Path, sequences: list[tuple[int, int]]) -> None:
    source = generate(chain(), Target.parse(TARGET)).source
    assert source.count("barrier.wait();") == 4
    meetings = ("even ? some || many : many", "even ? few || some : few")
    for steps in ("some", "few || some", *meetings):
        assert source.count(f"if ({steps}) barrier.wait();") == 1
    code, errors = run_chain(tmp_path, source.replace("barrier.wait();", ";"), sequences)
    assert code != 0 and "data race" in errors


def test_a_product_before_a_norm_deals_rows_if_heads_are_uneven(tmp_path: Path) -> None:
    source = generate(chain(), Target.parse(TARGET)).source
    uneven = source.replace("even = true", "even = false")
    assert uneven != source
    code, errors = run_chain(tmp_path, uneven, SOME)
    assert code == 0, errors
    columns = uneven.replace("48>(own_if_uneven,", "48>(own_if_many,")
    assert columns != uneven
    code, errors = run_chain(tmp_path, columns, SOME)
    assert code != 0 and "data race" in errors


def test_threads_that_share_what_each_has_for_itself_race(tmp_path: Path) -> None:
    source = generate(chain(), Target.parse(TARGET)).source.replace("memory.of(team)", "memory")
    code, errors = run_chain(tmp_path, source, FEW)
    assert code != 0 and "data race" in errors


@SIZES
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("product", [False, True])
def test_threads_attend_to_what_they_wrote(
    tmp_path: Path, sequences: list[tuple[int, int]], threads: int, product: bool
) -> None:
    plan = heads_chain(product)
    source = generate(plan, Target.parse(TARGET)).source
    for waits in ("  if (even ? many : true) ", "  ", "  if (few) "):
        assert source.count(f"\n{waits}barrier.wait();") == 1
    code, errors = run_chain(tmp_path, source, sequences, plan, threads)
    assert code == 0, errors


@pytest.mark.parametrize("sequences", [SOME, MANY])
@pytest.mark.parametrize("product", [False, True])
def test_with_more_heads_or_rows_of_their_own_they_must_wait(
    tmp_path: Path, sequences: list[tuple[int, int]], product: bool
) -> None:
    plan = heads_chain(product)
    unguarded = "if (even ? many : true) barrier.wait();"
    source = generate(plan, Target.parse(TARGET)).source.replace(unguarded, "")
    code, errors = run_chain(tmp_path, source, sequences, plan, threads=2)
    assert code != 0 and "data race" in errors


def test_what_reads_attention_must_deal_rows_in_steps_of_some(tmp_path: Path) -> None:
    """No thread waits between it and what goes on row by row."""
    plan = heads_chain()
    source = generate(plan, Target.parse(TARGET)).source
    columns = source.replace("96>(own_unless_few,", "96>(own_if_many,")
    assert columns != source
    code, errors = run_chain(tmp_path, columns, SOME, plan)
    assert code != 0 and "data race" in errors
