"""The kernels under the address, undefined-behaviour and thread sanitizers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ingot.artifact.plan import Buffer, Instruction, MemoryPlan, Plan
from ingot.artifact.target import Target
from ingot.compiler.cpp.generate import generate
from tests.compiler.cpp.cases import all_cases
from tests.compiler.cpp.native import TARGETS, Memory, aligned
from tests.compiler.cpp.sanitized import Driver, build_driver
from tests.compiler.cpp.units import INPUT_SHAPES, LIMITS, Unit, make_step

SEQUENCES = [(1, 41), (13, 13), (50, 90)]
SINGLE = [(1, 41)]
TARGET = TARGETS[0]
# Sizes that end within a vector, a panel and a page; a few, since sanitized builds are slow.
NAMES = (
    *("linear-27x27-bf16", "linear-200x144-f32", "add-rms-37-bf16", "layer-37-f32"),
    *("table-13-f32", "rope-write-20-bf16", "write-20-f32", "attention-12-bf16"),
    *("gelu-mul-37-True-bf16", "cast-37-f32", "embedding-37-bf16", "head-bf16", "tied-bf16"),
    "select-37-bf16",
)


def kernels() -> Unit:
    return Unit(tuple(case for case in all_cases() if case.name in NAMES), TARGET)


@pytest.fixture(scope="module")
def address_driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    source = kernels().generated.source
    return build_driver(tmp_path_factory.mktemp("address"), source, TARGET, "address,undefined")


def test_no_read_or_write_is_out_of_bounds(address_driver: Driver) -> None:
    """And the bits are those of the optimised build: the compiler has no say in them."""
    rng = torch.Generator().manual_seed(3)
    step = make_step(rng, SEQUENCES)
    unit = kernels()
    memory = unit.memory(unit.draw(rng, step), step)
    twin = replace(memory, caches=[c.copy() for c in memory.caches], arena=memory.arena.copy())
    done = address_driver.run(memory, step.inputs, threads=3)
    assert done.returncode == 0, done.stderr
    unit.execute(twin, step, threads=3)
    assert np.array_equal(memory.arena, twin.arena)
    for got, expected in zip(memory.caches, twin.caches, strict=True):
        assert np.array_equal(got, expected)


def test_a_buffer_that_is_short_is_noticed(address_driver: Driver) -> None:
    rng = torch.Generator().manual_seed(3)
    step = make_step(rng, SEQUENCES)
    unit = kernels()
    memory = unit.memory(unit.draw(rng, step), step)
    memory.caches = [cache[:64] for cache in memory.caches]
    done = address_driver.run(memory, step.inputs, threads=1)
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr


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


def run_chain(folder: Path, source: str, sequences: list[tuple[int, int]]) -> tuple[int, str]:
    plan = chain()
    driver = build_driver(folder, source, TARGET, "thread")
    weights = [aligned(-(-48 // 16) * 16 * 80 * 8) for _ in plan.of_kind("weight")]
    memory = Memory(weights, [], aligned(plan.memory.arena_bytes))
    step = make_step(torch.Generator().manual_seed(0), sequences)
    done = driver.run(memory, step.inputs, threads=3)
    return done.returncode, done.stderr


@pytest.mark.parametrize("sequences", [SEQUENCES, SINGLE])
def test_threads_do_not_race(tmp_path: Path, sequences: list[tuple[int, int]]) -> None:
    source = generate(chain(), Target.parse(TARGET)).source
    code, errors = run_chain(tmp_path, source, sequences)
    assert code == 0, errors


@pytest.mark.parametrize("sequences", [SEQUENCES, SINGLE])
def test_without_barriers_they_do(tmp_path: Path, sequences: list[tuple[int, int]]) -> None:
    source = generate(chain(), Target.parse(TARGET)).source
    assert source.count("barrier.wait();") == 4
    assert source.count("if (!single) barrier.wait();") == 2
    code, errors = run_chain(tmp_path, source.replace("barrier.wait();", ";"), sequences)
    assert code != 0 and "data race" in errors


def test_threads_that_share_what_each_has_for_itself_race(tmp_path: Path) -> None:
    source = generate(chain(), Target.parse(TARGET)).source.replace("memory.of(team)", "memory")
    code, errors = run_chain(tmp_path, source, SINGLE)
    assert code != 0 and "data race" in errors
