"""The sampler under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ingot.artifact.target import Target
from ingot.targets.cpu.toolchain import KERNELS, find_compiler, target_flags
from tests.support.core import core
from tests.targets.cpu.native import runnable
from tests.targets.cpu.sanitized import FLAGS

SOURCE = Path(__file__).with_name("sampler_check.cpp")
LEVELS = runnable("cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:portable")


@pytest.mark.parametrize("level", core(LEVELS[0], further=LEVELS))
def test_the_sampler_stays_within_its_memory(level, tmp_path):
    program = tmp_path / "check"
    flags = (*FLAGS, "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    files = ("-I", KERNELS, SOURCE, "-o", program)
    command = (*find_compiler(), *flags, *target_flags(Target.parse(level)), *files)
    subprocess.run(command, check=True, timeout=300)
    done = subprocess.run([program], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    # The negative control: buffers without room for all candidates.
    short = subprocess.run([program, "20"], capture_output=True, text=True, timeout=300)
    assert short.returncode != 0 and "AddressSanitizer" in short.stderr
