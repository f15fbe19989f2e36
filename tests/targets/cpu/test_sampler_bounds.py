"""The sampler under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.core import core
from tests.targets.cpu.native import runnable
from tests.targets.cpu.sanitized import build_sanitized

SOURCE = Path(__file__).with_name("sampler_check.cpp")
LEVELS = runnable("cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:portable")


@pytest.mark.parametrize("level", core(LEVELS[0], further=LEVELS))
def test_the_sampler_stays_within_its_memory(level: str) -> None:
    sources = ((SOURCE.name, SOURCE.read_text()),)
    program = build_sanitized(sources, level, "address,undefined", "-O1")
    done = subprocess.run([program], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    # The negative control: buffers without room for all candidates.
    short = subprocess.run([program, "20"], capture_output=True, text=True, timeout=300)
    assert short.returncode != 0 and "AddressSanitizer" in short.stderr
