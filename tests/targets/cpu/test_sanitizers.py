"""Every kernel under the address and undefined-behaviour sanitizers, at every level."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ingot.targets.cpu.calls import CALLS
from ingot.targets.cpu.toolchain import KERNELS
from tests.support.core import core
from tests.targets.cpu.cases import BEST, PROGRAMS, RECORDS, SEGMENTS, unit
from tests.targets.cpu.programs import program
from tests.targets.cpu.sanitized import ACCESSES

SINGLE = [(1, 41)]
# Rows that fill no tile; the last sequence is the longest and fills its pages, whatever their size.
FEW = [(1, 41), (13, 13), (50, 96)]
WIDE = [(1, 7), (261, 276)]  # more rows than a block
SHORT = re.compile(r"AddressSanitizer: (use-after-poison|heap-buffer-overflow)")


@pytest.mark.parametrize(
    "kind, target", core(BEST[1], SEGMENTS, RECORDS, further=BEST, slow=PROGRAMS)
)
@pytest.mark.parametrize("sequences", [SINGLE, FEW, WIDE], ids=["single", "few", "wide"])
def test_no_read_or_write_is_out_of_bounds(
    kind: str, target: str, sequences: list[tuple[int, int]]
) -> None:
    kernels = program(kind, target)
    step = kernels.step(sequences)
    memory = kernels.memory(step)
    rests = [end.rest for end in kernels.ends(memory, step)]
    assert not kernels.errors(memory, step, rests)


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("kind, target", core(further=(*BEST, SEGMENTS, RECORDS), slow=PROGRAMS))
def test_an_operand_that_ends_sooner_is_noticed(kind: str, target: str) -> None:
    """The control, for each: all that a kernel is handed, one after the other."""
    kernels = program(kind, target)
    step = kernels.step(FEW)
    memory = kernels.memory(step)
    operands = kernels.ends(memory, step)
    with ThreadPoolExecutor(2) as pool:
        said = pool.map(
            lambda end: kernels.errors(memory, step, [end.too_much], stacks=False), operands
        )
        unnoticed = [
            end.name for end, errors in zip(operands, said, strict=True) if not SHORT.search(errors)
        ]
    assert unnoticed == []
    assert SHORT.search(kernels.errors(memory, step, fewer_logits=1))
    assert SHORT.search(kernels.errors(memory, step, fewer_sampler_bytes=64))


@pytest.mark.parametrize("kind, target", core(further=BEST[:1], slow=BEST))
def test_the_compiler_has_no_say_in_the_bits(kind: str, target: str) -> None:
    """Without optimisation they are those of the build that is in use."""
    kernels = program(kind, target)
    step = kernels.step(FEW)
    memory, twin = kernels.memory(step), kernels.memory(step)
    assert not kernels.errors(memory, step)
    kernels.run_optimised(twin, step)
    assert np.array_equal(memory.arena, twin.arena)
    for got, expected in zip(memory.caches, twin.caches, strict=True):
        assert np.array_equal(got, expected)


def test_every_kernel_is_among_them() -> None:
    units = (unit(kind, target) for kind, target in (*BEST, SEGMENTS, RECORDS))
    kernels = {work.kernel for each in units for work in each.work}
    assert kernels == CALLS.keys()


def test_no_access_is_hidden_from_the_sanitizers() -> None:
    access = re.compile(r"\b_mm\d*_\w*(?:load|store|gather|scatter|stream|expand)\w*")
    found = {name for path in KERNELS.glob("*.h") for name in access.findall(path.read_text())}
    assert "_mm512_maskz_loadu_ps" in found
    assert found <= set(re.findall(r"#define (\w+)\(", ACCESSES.read_text()))
