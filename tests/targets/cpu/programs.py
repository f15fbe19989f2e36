"""Units that end with a head, built with their driver under the address sanitizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch

from tests.support.made_once import shared_folder
from tests.targets.cpu.bounds import End, ends
from tests.targets.cpu.cases import SEGMENTS, unit
from tests.targets.cpu.native import Ahead, Memory, ahead, load
from tests.targets.cpu.sanitized import Driver, Hole, build_driver
from tests.targets.cpu.steps import Step
from tests.targets.cpu.units import Unit

SANITIZERS = "address,undefined"
THREADS = 3


@dataclass(frozen=True)
class Program:
    """A unit and what it is built into; texts have nothing before their rows of a step."""

    unit: Unit
    of_texts: bool
    driver: Ahead[Driver]

    def step(self, sequences: list[tuple[int, int]]) -> Step:
        """A step that reads the last row of tables, and stores the keys of its last row."""
        if self.of_texts:
            sequences = [(rows, rows) for rows, _ in sequences]
        step = self.unit.step(torch.Generator().manual_seed(3), sequences)
        page, place = divmod(int(step.inputs["positions"][-1]), 16)
        step.inputs["slots"][-1] = step.inputs["page_table"][-1, page] * 16 + place
        return step

    def memory(self, step: Step) -> Memory:
        """The unit's buffers with random values in them; always the same."""
        return self.unit.memory(self.unit.draw(torch.Generator().manual_seed(4), step), step)

    def ends(self, memory: Memory, step: Step) -> list[End]:
        """Where the operands of the step end."""
        return ends(self.unit, memory, step)

    def errors(
        self,
        memory: Memory,
        step: Step,
        holes: Sequence[Hole] = (),
        fewer_logits: int = 0,
        fewer_sampler_bytes: int = 0,
        stacks: bool = True,
    ) -> str:
        """What the sanitizer says of a step and of drawing from it; nothing if it saw no error."""
        done = self.driver.result().run(
            memory,
            step.inputs,
            THREADS,
            logits=memory.logits.size - fewer_logits,
            vocabulary=memory.logits.shape[1],
            fewer_sampler_bytes=fewer_sampler_bytes,
            holes=holes,
            stacks=stacks,
        )
        assert (done.returncode == 0) == (not done.stderr), done
        return done.stderr

    def run_optimised(self, memory: Memory, step: Step) -> None:
        """Runs the unit as it is built for use."""
        library = load(self.unit.sources, self.unit.target)
        memory.run(library, step.inputs, THREADS)


@cache
def program(kind: str, target: str) -> Program:
    """Its build starts here, once a session."""
    kernels = unit(kind, target)
    place = Path(mkdtemp(dir=shared_folder()))
    driver = ahead(build_driver, place, kernels.sources, target, SANITIZERS)
    return Program(kernels, kind == SEGMENTS[0], driver)
