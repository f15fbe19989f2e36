"""`bench.tune_cpu` times sizes of kernels in turns, and tells which are better."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import tune_cpu
from bench.tune_cpu import PHASES, Phase, Trial, compared
from ingot.targets.cpu.toolchain import Tuning, tuning_of
from ingot.targets.target import target_named

TABLE = Tuning(core_cache=1 << 20, quad_rows=6)


class MadeUp(Trial):
    """A trial in which kernels are their sizes, and take and store what a function says."""

    def __init__(self, told: Callable[[Tuning, Phase], tuple[float, str]]) -> None:
        self._told = told

    def kernels(self, tuning: Tuning, folder: Path) -> Any:
        return tuning

    def run(self, kernels: Any, phase: Phase) -> tuple[float, str]:
        return self._told(kernels, phase)


def lines(told: Callable[[Tuning, Phase], tuple[float, str]]) -> list[str]:
    return list(compared(MadeUp(told), TABLE, "quad_rows", (4, 6, 8), Path("unused"), 3))


def test_the_sizes_of_the_table_come_first_and_others_as_shares_of_their_times() -> None:
    def told(tuning: Tuning, phase: Phase) -> tuple[float, str]:
        return 0.001 * tuning.quad_rows * (1 + PHASES.index(phase)), "bits"

    own, four, eight = lines(told)
    assert own == "quad_rows 6: prefill 512 6.00 ms, 16 at once 12.00 ms, decode 18.00 ms"
    assert four.split() == ["4:", *["0.667,"] * 3, "mean", "0.667", "better"]
    assert eight.split() == ["8:", *["1.333,"] * 3, "mean", "1.333"]


def test_a_gain_in_one_kind_of_step_has_to_outweigh_losses_in_the_others() -> None:
    def told(tuning: Tuning, phase: Phase) -> tuple[float, str]:
        other = tuning.quad_rows != TABLE.quad_rows
        return (0.8 if phase is PHASES[0] else 1.2) if other else 1.0, "bits"

    assert not any("better" in line for line in lines(told))


def test_sizes_that_store_other_bits_are_told_even_if_they_are_faster() -> None:
    def told(tuning: Tuning, phase: Phase) -> tuple[float, str]:
        wrong = tuning.quad_rows == 4 and phase is PHASES[-1]
        return 0.1 if tuning.quad_rows == 4 else 1.0, "wrong" if wrong else "bits"

    _, four, eight = lines(told)
    assert four.endswith("OTHER BITS") and not eight.endswith("OTHER BITS")


@pytest.mark.thorough
def test_real_kernels_of_other_sizes_store_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune_cpu, "SHAPE", "tiny")
    monkeypatch.setattr(tune_cpu, "TRIED", {"quad_rows": (("int8",), (3, 4))})
    arguments = "--target cpu:x86-64-v3 --stored int8 --sizes quad_rows --layers 1 --rounds 1"
    assert tune_cpu.main(arguments.split()) == 0
    told = capsys.readouterr().out
    assert str(tuning_of(target_named("cpu:x86-64-v3"))) in told
    assert "operations for each byte" in told
    assert "quad_rows 4: prefill 512" in told and "  3: " in told
    assert "OTHER BITS" not in told
