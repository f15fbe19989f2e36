"""Chains of kernels under the thread sanitizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ingot.artifact.plan import Plan
from ingot.targets.cpu.generate import generate
from ingot.targets.cpu.kind import KIND
from ingot.targets.cpu.toolchain import KERNELS
from ingot.targets.target import target_named
from tests.support.core import core
from tests.targets.cpu.native import TARGETS, Memory, aligned_bytes, sources_of
from tests.targets.cpu.sanitized import build_driver
from tests.targets.cpu.steps import make_step
from tests.targets.cpu.units import apart
from tests.targets.sketch import STEP, Sketch, normal

RUNS = 3
# Of three threads.
FEW = [(1, 41), (13, 13), (7, 90)]
SOME = [(1, 41), (13, 13), (50, 90)]
MANY = [(1, 41), (100, 113), (50, 90)]
SIZES = pytest.mark.parametrize(
    "sequences", core(further=[FEW, SOME, MANY]), ids=["few", "some", "many"]
)
TARGET = TARGETS[0]


def placed(s: Sketch, *shared: tuple[str, str]) -> Plan:
    """The plan in groups, residuals apart; the second of each pair lies where the first does."""
    plan = apart(KIND.group(s.plan(), ["group_residuals"])[0])
    places = {second: plan.buffer(first).offset for first, second in shared}
    return apart(plan, places)


def chain() -> Plan:
    """A norm, two linears with a gate between them, and the norm after: rows and columns cross."""
    s = Sketch()
    norm = s.weight("norm", normal(48))
    h = s.call("rms_norm", s.rows("x", 48), norm, out="h", eps=1e-5)
    gate = s.call("linear", h, s.weight("up", normal(80, 48)), out="gate")
    m = s.call("activation", gate, out="m", kind="silu")
    y = s.call("linear", m, s.weight("down", normal(48, 80)), out="y")
    total = s.call("add", y, "x", out="s")
    s.call("rms_norm", total, norm, out="g", eps=1e-5)
    # `y` takes the place of `h`: memory that other threads may still be reading.
    return placed(s, ("h", "y"))


def heads_chain(product: bool = False) -> Plan:
    """Keys written and attended to, by six KV heads, and a product of the results.

    With `product` keys are written by one, too.
    """
    heads, kv_heads, size, columns = 12, 6, 64, 96
    shapes = {"q": heads, "k": kv_heads, "v": kv_heads}
    s = Sketch()
    if product:
        outputs, first = (heads + 2 * kv_heads) * size, 0
        made = s.call("linear", s.rows("x", 16), s.weight("in", normal(outputs, 16)), out="made")
        for name, count in shapes.items():
            s.view(name, made, first, count, size)
            first += count * size
    else:
        for name, count in shapes.items():
            s.rows(name, count, size)
    table = s.rows("t", size)
    for name in "qk":
        s.call("rope", name, table, out=f"{name}_turned")
    s.call("kv_write", "k_turned", "v", "slots", *s.caches(kv_heads, size))
    s.call("paged_attention", "q_turned", "k_cache", "v_cache", *STEP, out="o", scale=0.25)
    weight = s.weight("out", normal(columns, heads * size))
    s.call("linear", s.view("row", "o", 0, heads * size), weight, out="p")
    s.call("activation", "p", out="m", kind="silu")
    return placed(s)


def step_cpp(plan: Plan) -> str:
    """The text of step.cpp; the other units do not depend on how threads wait."""
    return generate(plan, target_named(TARGET))["step.cpp"]


def run_chain(
    folder: Path,
    source: str,
    sequences: list[tuple[int, int]],
    plan: Plan | None = None,
    threads: int = 3,
    **others: str,
) -> tuple[int, str]:
    """The code and the errors of that step.cpp, and of `others` among its units.

    Of several runs, where one of them shows a race: on a busy host threads may happen to meet.
    """
    plan = plan or chain()
    units = generate(plan, target_named(TARGET)) | {"step.cpp": source}
    units |= {f"{name}.cpp": text for name, text in others.items()}
    driver = build_driver(folder, sources_of(units), TARGET, "thread")
    weights = [aligned_bytes(768 * 80 * 4) for _ in plan.of_kind("weight")]
    step = make_step(torch.Generator().manual_seed(0), sequences)
    caches = [aligned_bytes(size * step.num_pages) for size in plan.page_sizes()]
    arena = aligned_bytes(plan.memory.arena_bytes)
    memory = Memory(weights, caches, arena, step.num_pages, np.zeros(0))
    for _ in range(RUNS):
        done = driver.run(memory, step.inputs, threads=threads)
        if done.returncode:
            break
    return done.returncode, done.stderr


@SIZES
def test_threads_do_not_race(tmp_path: Path, sequences: list[tuple[int, int]]) -> None:
    source = step_cpp(chain())
    code, errors = run_chain(tmp_path, source, sequences)
    assert code == 0, errors


@pytest.mark.parametrize("sequences", core(further=[FEW, SOME]))
def test_without_barriers_they_do(tmp_path: Path, sequences: list[tuple[int, int]]) -> None:
    source = step_cpp(chain())
    assert source.count("barrier.wait();") == 4
    meetings = ("even ? some || many : many", "even ? few || some : few")
    for steps in ("some", "few || some", *meetings):
        assert source.count(f"if ({steps}) barrier.wait();") == 1
    code, errors = run_chain(tmp_path, source.replace("barrier.wait();", ";"), sequences)
    assert code != 0 and "data race" in errors


@pytest.mark.thorough
def test_a_caller_that_does_not_wait_races(tmp_path: Path) -> None:
    text = (KERNELS / "interface.h").read_text()
    hasty = text.replace("return static_cast<Model*>(model)->wait();", "return 0;")
    assert hasty != text
    code, errors = run_chain(tmp_path, step_cpp(chain()), FEW, interface=hasty)
    assert code != 0 and "data race" in errors


@pytest.mark.slow
def test_a_product_before_a_norm_deals_rows_if_heads_are_uneven(tmp_path: Path) -> None:
    source = step_cpp(chain())
    uneven = source.replace("even = true", "even = false")
    assert uneven != source
    code, errors = run_chain(tmp_path, uneven, SOME)
    assert code == 0, errors
    columns = uneven.replace("linear_1(frame, own_if_uneven,", "linear_1(frame, own_if_many,")
    assert columns != uneven
    code, errors = run_chain(tmp_path, columns, SOME)
    assert code != 0 and "data race" in errors


@pytest.mark.thorough
def test_threads_that_share_what_each_has_for_itself_race(tmp_path: Path) -> None:
    source = step_cpp(chain()).replace("memory.of(team)", "memory")
    code, errors = run_chain(tmp_path, source, FEW)
    assert code != 0 and "data race" in errors


@pytest.mark.cases(thorough=4)
@SIZES
@pytest.mark.parametrize("threads", core(further=[4, 3]))
@pytest.mark.parametrize("product", [True, False])
def test_threads_attend_to_what_they_wrote(
    tmp_path: Path, sequences: list[tuple[int, int]], threads: int, product: bool
) -> None:
    plan = heads_chain(product)
    source = step_cpp(plan)
    for waits in ("  if (even ? many : true) ", "  ", "  if (few) "):
        assert source.count(f"\n{waits}barrier.wait();") == 1
    code, errors = run_chain(tmp_path, source, sequences, plan, threads)
    assert code == 0, errors


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("sequences", core(further=[SOME, MANY]))
@pytest.mark.parametrize("product", core(True, further=[False]))
def test_with_more_heads_or_rows_of_their_own_they_must_wait(
    tmp_path: Path, sequences: list[tuple[int, int]], product: bool
) -> None:
    plan = heads_chain(product)
    unguarded = "if (even ? many : true) barrier.wait();"
    source = step_cpp(plan).replace(unguarded, "")
    code, errors = run_chain(tmp_path, source, sequences, plan, threads=4)
    assert code != 0 and "data race" in errors


@pytest.mark.thorough
def test_what_reads_attention_must_deal_rows_in_steps_of_some(tmp_path: Path) -> None:
    """No thread waits between it and what goes on row by row."""
    plan = heads_chain()
    source = step_cpp(plan)
    columns = source.replace("(frame, own_unless_few,", "(frame, own_if_many,")
    assert columns != source
    code, errors = run_chain(tmp_path, columns, SOME, plan)
    assert code != 0 and "data race" in errors
