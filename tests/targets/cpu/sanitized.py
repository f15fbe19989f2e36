"""Builds a unit with its driver under a sanitizer, and runs jobs in a process of their own."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from torch import Tensor

from ingot.targets.compilers import side_by_side
from ingot.targets.cpu.toolchain import compile_once, find_compiler
from ingot.targets.target import target_named
from tests.support.made_once import made_once
from tests.targets.cpu.native import Memory, Sources, encoding, write_sources

DRIVER = Path(__file__).with_name("driver.cpp")
ACCESSES = Path(__file__).with_name("accesses.h")
# Full debug information would take half of the time of a build. What tiles read, sanitizers do not
# see.
FLAGS = ("-g1", "-DINGOT_EMULATES_AMX", "-fno-sanitize-recover=all")

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
        arrays = [inputs[name].int().contiguous().numpy() for name in memory.inputs]
        buffers = [*memory.weights, *memory.caches, memory.arena, *arrays]
        sizes = {name: len(inputs[name]) for name in ("logit_rows", "tokens", "page_table")}
        numbers = [threads, memory.num_pages, *sizes.values(), inputs["page_table"].shape[1]]
        numbers += [
            logits,
            vocabulary,
            fewer_sampler_bytes,
            len(memory.weights),
            len(memory.caches),
            len(arrays),
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
    both = (*sources, (DRIVER.name, DRIVER.read_text()))
    return Driver(build_sanitized(both, target, sanitizers, "-O0"), folder)


@cache
def build_sanitized(sources: Sources, target: str, sanitizers: str, level: str) -> Path:
    """A program under those sanitizers, at a level of optimisation, linked once a test run."""
    sanitizing = f"-fsanitize={sanitizers}"
    flags = (level, *FLAGS, sanitizing, *encoding(target))
    # A part of each source: what is compiled is known by its text.
    texts = [(name, f"{ACCESSES.read_text()}\n{text}") for name, text in sources]

    def build(place: Path) -> None:
        write_sources(place, texts)
        units = sorted(place.glob("*.cpp"))
        objects = [unit.with_suffix(".o") for unit in units]
        side_by_side(
            partial(compile_once, unit, made, target_named(target), flags)
            for unit, made in zip(units, objects, strict=True)
        )
        link = (*find_compiler(), sanitizing, "-pthread", *objects, "-o", place / "program")
        subprocess.run(link, check=True, timeout=300)

    key = "\n".join((target, *flags, str(texts)))
    return made_once(f"program-{hashlib.sha256(key.encode()).hexdigest()}", build) / "program"
