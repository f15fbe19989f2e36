"""Launches that begin before the one before them ends: which they are, and that all wait."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingot.artifact.architectures import ARCHITECTURES
from ingot.artifact.launches import (
    Binary,
    Extent,
    KernelSpec,
    Launch,
    LaunchArgument,
    Launches,
    Variant,
    decode_launches,
)
from ingot.artifact.target import Target
from ingot.errors import ToolchainError
from ingot.targets.cuda import dependent, gates
from ingot.targets.cuda.dependent import with_dependents
from ingot.targets.cuda.gates import OTHER, GatedKernel
from tests.support.core import core
from tests.support.tiny_models import save_random
from tests.targets.cuda.known_faults import unexpected_faults
from tests.targets.cuda.shapes import built_of, plan_of
from tests.targets.cuda.simulation import compile_sketch, simulated
from tests.targets.cuda.tiny import DOUBLE, TARGETS, built, launches

SM_80, SM_90, SM_100 = (ARCHITECTURES[level] for level in ("sm_80", "sm_90", "sm_100"))
GRID = (Extent(), Extent(), Extent())
LATE = KernelSpec(
    function="small.late",
    arguments=(("x", "*bf16"), ("out", "*fp32"), ("N", "i32")),
    constants={"BLOCK": 1024},
    dependent=True,
)


@pytest.fixture
def enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependent, "ENABLED", True)


def spec(function: str) -> KernelSpec:
    return KernelSpec(function=function, arguments=(), constants={})


def launch(few: int, many: int | None = None) -> Launch:
    """Of a kernel for steps of any size, or of one for few rows and of another for more."""
    if many is None:
        return Launch(group=0, arguments=(), variants=(Variant(kernel=few, grid=GRID),))
    small = Variant(kernel=few, grid=GRID, size="N", most=64)
    return Launch(
        group=0,
        arguments=(LaunchArgument(size="N"),),
        variants=(small, Variant(kernel=many, grid=GRID)),
    )


# A step that begins with a product, and has one more, for few rows and for many.
STEP = Launches(
    kernels=tuple(map(spec, (
        "product.multiply", "attention.attend_chunks", "product.multiply", "product.multiply",
        "finish.norm", "rows.add",
    ))),
    launches=(launch(0), launch(1), launch(2, 3), launch(4), launch(5)),
)  # fmt: skip


def test_they_are_products_of_few_rows_and_their_second_stages(enabled) -> None:
    for architecture in (SM_90, SM_100):
        found = with_dependents(STEP, architecture)
        assert [number for number, each in enumerate(found.kernels) if each.dependent] == [2, 4]
        assert replace(found, kernels=STEP.kernels) == STEP


def test_they_are_off_and_older_architectures_have_none(monkeypatch) -> None:
    assert with_dependents(STEP, SM_90) is STEP
    monkeypatch.setattr(dependent, "ENABLED", True)
    assert with_dependents(STEP, SM_80) is STEP


GOOD = ("S2R", "LDC", "ACQBULK", "PREEXIT", "LDG.E.128", "STG.E")


def faults(*names: str, waits: bool = True) -> list[str]:
    """Of a kernel that consists of those instructions, in that order."""
    binary = Binary(
        file="a", entry="a", parameters=(), shared_bytes=0, registers=8, spilled_bytes=0
    )
    kernel = GatedKernel(replace(DOUBLE, dependent=waits), binary, dict.fromkeys(names, 1))
    return list(gates.faults(kernel, SM_90, OTHER))


def test_a_wait_before_all_memory_is_no_fault() -> None:
    assert faults(*GOOD) == faults("LDG.E", "STG.E", waits=False) == []


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("LDG.E", "STG.E"), "has neither of ACQBULK and PREEXIT"),
        (("ACQBULK", "LDG.E"), "has ACQBULK of ACQBULK and PREEXIT"),
        (("PREEXIT", "LDG.E"), "has PREEXIT of ACQBULK and PREEXIT"),
        (("LDG.E", "ACQBULK", "PREEXIT"), "LDG.E before the wait"),
        (("LDGSTS.E.BYPASS.128", "ACQBULK", "PREEXIT"), "LDGSTS.E.BYPASS.128 before the wait"),
        (("STG.E.64", "ACQBULK", "PREEXIT"), "STG.E.64 before the wait"),
        (("UTMALDG.2D", "ACQBULK", "PREEXIT"), "UTMALDG.2D before the wait"),
        (("PREEXIT", "ACQBULK", "LDG.E"), "PREEXIT before the wait"),
    ],
)
def test_a_kernel_that_does_not_wait_first_is_found(names: tuple[str, ...], words: str) -> None:
    (fault,) = faults(*names)
    assert words in fault


def test_a_kernel_that_waits_for_nothing_is_found() -> None:
    (fault,) = faults(*GOOD, waits=False)
    assert fault.startswith("ACQBULK, PREEXIT in a kernel that is launched after")


def test_a_real_kernel_that_waits_too_late_is_found(tmp_path: Path) -> None:
    made = built(tmp_path / "late", LATE)
    (fault,) = gates.check(launches(LATE), made.binaries, tmp_path / "late", TARGETS[1])
    assert "LDG" in fault and "before the wait for the launch before" in fault


def test_a_kernel_that_cannot_wait_is_not_built(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"unknown constants: .'DEPENDENT'"):
        built(tmp_path / "double", replace(DOUBLE, dependent=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stored", "target", "count"),
    core(
        further=[("int4", TARGETS[1], 3)], slow=[("none", TARGETS[0], 0), ("none", TARGETS[1], 3)]
    ),
)
def test_all_of_a_real_shape_wait_and_the_others_do_not(
    enabled, tmp_path: Path, stored: str, target: Target, count: int
) -> None:
    made = built_of(tmp_path, plan_of(tmp_path, "qwen3-0.6b", stored, target), target)
    assert unexpected_faults(made, tmp_path, target) == []
    waiting = {each.function for each in made.launches.kernels if each.dependent}
    assert len(waiting) >= count and bool(waiting) == bool(count)


@pytest.mark.thorough
def test_a_model_with_them_has_the_same_bits(monkeypatch, tmp_path: Path) -> None:
    """On the simulated device, where launches run one after the other."""
    model_dir = save_random("qwen3", tmp_path / "model", tokenizer=True)
    logits = []
    for name, on in (("without", False), ("with", True)):
        monkeypatch.setattr(dependent, "ENABLED", on)
        path = compile_sketch(
            model_dir, tmp_path / f"{name}.ingot", max_model_len=32, max_num_seqs=4,
            max_num_batched_tokens=16,
        )  # fmt: skip
        (file,) = path.glob("targets/*/source/launches.json")
        kernels = decode_launches(file.read_bytes()).kernels
        assert any(each.dependent for each in kernels) == on
        with simulated(path) as llm:
            logits.append(llm.logits([1, 2, 3, 4, 5]))
    assert np.array_equal(*logits)
