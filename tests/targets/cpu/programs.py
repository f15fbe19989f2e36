"""Units that end with a head, built with their driver under the address sanitizer."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch

from ingot.artifact.plan import Plan
from ingot.artifact.target import Target
from ingot.targets.cpu.generate import Generated, generate
from tests.targets.cpu import quantized
from tests.targets.cpu.bounds import End, ends
from tests.targets.cpu.cases import all_cases
from tests.targets.cpu.native import TARGETS, Memory, folder, load, workers
from tests.targets.cpu.sanitized import Driver, Hole, build_driver
from tests.targets.cpu.units import VOCABULARY, Step, Unit, make_step

PROGRAMS = (
    *(("float", target) for target in TARGETS),
    *(("quantized", target) for target in quantized.TARGETS),
)
SANITIZERS = "address,undefined"
THREADS = 3
# Sizes that end within a vector, a panel and a page, and a product that is cut for the cache.
NAMES = (
    *("linear-27x27-bf16", "linear-27x27-f32", "linear-200x144-bf16", "linear-200x144-f32"),
    *(
        "linear-4200x64-bf16",
        "linear-96x304-bf16",
        "gated-27x192-bf16",
        "heads-128-bf16",
        "heads-64-i8-f32",
        "attention-quantize-64-bf16",
        "rms-37-f32",
        "rms-quantize-200-f32",
        "add-rms-37-bf16",
    ),
    *("layer-37-f32", "table-13-f32", "rope-80-bf16", "rope-16-f32", "rope-write-20-bf16"),
    *("rope-write-64-f32", "write-20-f32", "write-20-bf16", "attention-12-bf16"),
    *("rope-write-20-i8-bf16", "rope-write-64-i8-f32", "attention-12-i8-bf16"),
    *(
        "attention-20-i8-f32",
        "attention-80-bf16",
        "attention-20-f32",
        "silu-mul-37-f32",
        "relu-mul-37-bf16",
    ),
    *("gelu-mul-37-True-bf16", "gelu-37-bf16", "add-37-f32", "cast-37-f32"),
    *("cast-37-bf16",),
    *("embedding-37-bf16", "embedding-37-f32", "head-bf16", "tied-bf16", "head-f32", "tied-f32"),
    *("select-37-bf16", "select-37-f32"),
)
# The products that each program carries out once more, into logits.
HEADS = {"float": "linear-96x304-bf16.out", "quantized": f"{quantized.MATRICES[2].name}.out"}


@dataclass(frozen=True)
class Program:
    """A unit, the same with a head, and what that is built into."""

    unit: Unit | quantized.Unit
    plan: Plan
    generated: Generated
    driver: Future[Driver]

    def step(self, sequences: list[tuple[int, int]]) -> Step:
        """A step that reads the last row of tables, and stores the keys of its last row."""
        step = make_step(torch.Generator().manual_seed(3), sequences)
        vocabulary = VOCABULARY if isinstance(self.unit, Unit) else quantized.SMALLEST_VOCABULARY
        step.inputs["tokens"] %= vocabulary
        step.inputs["tokens"][-1] = vocabulary - 1
        page, place = divmod(int(step.inputs["positions"][-1]), 16)
        step.inputs["slots"][-1] = step.inputs["page_table"][-1, page] * 16 + place
        return step

    def memory(self, step: Step) -> Memory:
        """The unit's buffers with random values in them; always the same."""
        rng = torch.Generator().manual_seed(4)
        if isinstance(self.unit, Unit):
            return self.unit.memory(self.unit.draw(rng, step), step)
        activations = quantized.activations(rng, step.num_rows)
        return self.unit.memory({**quantized.weights(rng), **activations})

    def ends(self, memory: Memory, step: Step) -> list[End]:
        """Where the operands of the step end."""
        return ends(self.plan, self.generated, memory, step.inputs)

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
        vocabulary = int(self.plan.buffer("logits").shape[1])
        done = self.driver.result().run(
            memory,
            step.inputs,
            THREADS,
            logits=step.num_rows * vocabulary - fewer_logits,
            vocabulary=vocabulary,
            fewer_sampler_bytes=fewer_sampler_bytes,
            holes=holes,
            stacks=stacks,
        )
        assert (done.returncode == 0) == (not done.stderr), done
        return done.stderr

    def run_optimised(self, memory: Memory, step: Step) -> None:
        """Runs the unit, without the head, as it is built for use."""
        library = load(self.unit.generated.source, self.unit.target)
        memory.run(library, step.inputs, THREADS)


@cache
def program(kind: str, target: str) -> Program:
    """Its build starts here, once a session."""
    unit = quantized.unit(target) if kind == "quantized" else _floats(target)
    plan = _with_head(unit.plan, HEADS[kind])
    generated = generate(plan, Target.parse(target))
    place = Path(mkdtemp(dir=folder()))
    driver = workers().submit(build_driver, place, generated.source, target, SANITIZERS)
    return Program(unit, plan, generated, driver)


def _floats(target: str) -> Unit:
    return Unit(tuple(case for case in all_cases() if case.name in NAMES), target)


def _with_head(plan: Plan, result: str) -> Plan:
    """The plan with its instruction that gives the result once more at the end, for logits."""
    product = next(i for i in plan.instructions if result in i.outputs.values())
    logits = replace(plan.buffer(result), name="logits", kind="output", offset=0)
    head = replace(product, outputs={"out": "logits"})
    return replace(plan, buffers=(*plan.buffers, logits), instructions=(*plan.instructions, head))
