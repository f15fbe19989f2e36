"""Builds a unit with its driver under a sanitizer, and runs jobs in a process of their own."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from torch import Tensor

from ingot.artifact.target import Target
from ingot.targets.cpu.toolchain import KERNELS, find_compiler, target_flags
from tests.support.made_once import made_once
from tests.targets.cpu.native import INPUTS, Memory, Sources, encoding, write_sources

DRIVER = Path(__file__).with_name("driver.cpp")
ACCESSES = Path(__file__).with_name("accesses.h")
# Full debug information would take half of the time of a build. What tiles read, sanitizers do not
# see.
FLAGS = (
    *"-std=c++17 -g1 -ffp-contract=off -fno-math-errno -pthread -w".split(),
    *"-DINGOT_EMULATES_AMX -include".split(),
    str(ACCESSES),
)

# The number of a buffer (weights, caches, the arena, the step's inputs) and a range of its bytes.
Hole = tuple[int, int, int]


@dataclass(frozen=True)
class Driver:
    """An executable that runs one step."""

    path: Path
    folder: Path

    def run(
        self,
        memory: Memory,
        inputs: Mapping[str, Tensor],
        threads: int,
        logits: int = 0,
        vocabulary: int = 0,
        fewer_sampler_bytes: int = 0,
        holes: Sequence[Hole] = (),
        stacks: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Runs the step twice, the second time beside the caller.

        Then memory holds what the step left in the caches and the arena.
        With a vocabulary it draws from the logits, in memory for the sampler that may be too small.
        The address sanitizer takes holes for memory that is not there. Without stacks, what it
        says of an error names no functions and takes a tenth of the time.
        """
        arrays = [inputs[name].int().contiguous().numpy() for name in INPUTS]
        buffers = [*memory.weights, *memory.caches, memory.arena, *arrays]
        sizes = {name: len(inputs[name]) for name in ("logit_rows", "tokens", "page_table")}
        numbers = [threads, memory.num_pages, *sizes.values(), inputs["page_table"].shape[1]]
        numbers += [
            logits,
            vocabulary,
            fewer_sampler_bytes,
            len(memory.weights),
            len(memory.caches),
            len(holes),
        ]
        numbers += [buffer.nbytes for buffer in buffers]
        numbers += [number for hole in holes for number in hole]
        with TemporaryDirectory(dir=self.folder) as place:
            job, result = Path(place, "job"), Path(place, "result")
            with job.open("wb") as file:
                file.write(np.array(numbers, np.int64).tobytes())
                for buffer in buffers:
                    file.write(buffer.tobytes())
            done = subprocess.run(
                [self.path, job, result], capture_output=True, text=True, timeout=300,
                env={"ASAN_OPTIONS": f"detect_leaks=1:symbolize={stacks:d}",
                     "TSAN_OPTIONS": "halt_on_error=1"},
            )  # fmt: skip
            if done.returncode == 0:
                raw = np.fromfile(result, np.uint8)
                for buffer in (*memory.caches, memory.arena):
                    buffer[:], raw = raw[: buffer.nbytes], raw[buffer.nbytes :]
        return done


def build_driver(folder: Path, sources: Sources, target: str, sanitizers: str) -> Driver:
    """The unit and the driver in one program, under those sanitizers, with its jobs in the folder.

    Without optimisation: a step of a few rows is fast enough, and a build takes half of the time.
    """
    return Driver(_program(sources, target, sanitizers), folder)


@cache
def _program(sources: Sources, target: str, sanitizers: str) -> Path:
    """Built once a test run."""

    def build(place: Path) -> None:
        write_sources(place, sources)
        command = (
            *find_compiler(),
            *FLAGS,
            f"-fsanitize={sanitizers}",
            "-fno-sanitize-recover=all",
            *target_flags(Target.parse(target)),
            *encoding(target),
            *("-iquote", KERNELS, *place.glob("*.cpp"), DRIVER, "-o", place / "driver"),
        )
        subprocess.run(command, check=True, timeout=300)

    text = "\n".join((target, sanitizers, str(sources)))
    return made_once(f"driver-{hashlib.sha256(text.encode()).hexdigest()}", build) / "driver"
