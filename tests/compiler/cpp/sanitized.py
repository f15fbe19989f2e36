"""Builds a unit with its driver under a sanitizer, and runs jobs in a process of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from ingot.artifact.target import Target
from ingot.compiler.cpp.toolchain import KERNELS, find_compiler, target_flags
from tests.compiler.cpp.native import INPUTS, Memory

DRIVER = Path(__file__).with_name("driver.cpp")
FLAGS = "-std=c++17 -O1 -g -ffp-contract=off -fno-math-errno -pthread -w".split()


@dataclass(frozen=True)
class Driver:
    """An executable that runs one step."""

    path: Path

    def run(
        self, memory: Memory, inputs: Mapping[str, Tensor], threads: int, logits: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Runs the step twice; then memory holds what the step left in the caches and the arena."""
        job, result = self.path.with_suffix(".job"), self.path.with_suffix(".result")
        arrays = [inputs[name].int().contiguous().numpy() for name in INPUTS]
        buffers = [*memory.weights, *memory.caches, memory.arena, *arrays]
        sizes = {name: len(inputs[name]) for name in ("logit_rows", "tokens", "context_lens")}
        numbers = [threads, memory.num_pages, *sizes.values(), inputs["page_table"].shape[1]]
        numbers += [logits, len(memory.weights), len(memory.caches)]
        numbers += [buffer.nbytes for buffer in buffers]
        with job.open("wb") as file:
            file.write(np.array(numbers, np.int64).tobytes())
            for buffer in buffers:
                file.write(buffer.tobytes())
        done = subprocess.run(
            [self.path, job, result], capture_output=True, text=True, timeout=300,
            env={"ASAN_OPTIONS": "detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=1"},
        )  # fmt: skip
        if done.returncode == 0:
            raw = np.fromfile(result, np.uint8)
            for buffer in (*memory.caches, memory.arena):
                buffer[:], raw = raw[: buffer.nbytes], raw[buffer.nbytes :]
        return done


def build_driver(folder: Path, source: str, target: str, sanitizers: str) -> Driver:
    """The unit and the driver in one program, under those sanitizers."""
    (folder / "step.cpp").write_text(source)
    command = (
        *find_compiler(),
        *FLAGS,
        f"-fsanitize={sanitizers}",
        "-fno-sanitize-recover=all",
        *target_flags(Target.parse(target)),
        *("-iquote", KERNELS, folder / "step.cpp", DRIVER, "-o", folder / "driver"),
    )
    subprocess.run(command, check=True, timeout=300)
    return Driver(folder / "driver")
