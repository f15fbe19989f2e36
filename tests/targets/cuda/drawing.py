"""StepWants on the simulated device, from logits that no model has made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ingot.artifact.launches import (
    BuiltLaunches,
    Constant,
    KernelSpec,
    Launch,
    LaunchArgument,
    Launches,
    Variant,
)
from ingot.artifact.plan import Limits, Plan
from ingot.artifact.programs import LOGITS
from ingot.artifact.spec import Array, Spec
from ingot.errors import IngotError
from ingot.runtime.arrays import Float32
from ingot.runtime.devices.cuda.memory import Memory
from ingot.runtime.devices.cuda.program import LaunchedProgram
from ingot.runtime.devices.cuda.sampler import DeviceSampler
from ingot.runtime.executor import Scoring, StepResult, StepWants, TokenScore
from ingot.runtime.pool_size import PoolSize
from ingot.runtime.sequence import SampledSequence
from ingot.targets.cuda import draws
from ingot.targets.cuda.simulated import SimulatedDriver
from tests.targets.cuda.sketches import sketch

SMALL = {"ROWS": 2, "COLUMNS": 16, "BLOCK": 8}  # tiles, so that a short row has many of them
MOST = 16  # draws of a step


def plan_of(vocab_size: int) -> Plan:
    """A plan that has logits and nothing else."""
    limits = Limits(
        max_model_len=64, max_num_seqs=MOST, max_num_batched_tokens=64, max_logit_rows=2 * MOST,
        page_size=16,
    )  # fmt: skip
    logits = Array(name=LOGITS, dtype="float32", shape=("R", vocab_size))
    return Plan(limits=limits, spec=Spec(outputs=(logits,)), buffers=(), instructions=())


def launches_of(plan: Plan, constants: Mapping[str, Constant]) -> Launches:
    """The launches of drawing, with some constants of their own."""
    specs: list[KernelSpec] = []
    found = []
    for call in draws.calls(plan):
        (choice,) = call.choices
        own = {n: constants.get(n, value) for n, value in choice.constants.items()}
        variant = Variant(kernel=len(specs), grid=choice.grid)
        found.append(Launch(group=-1, arguments=call.passed, variants=(variant,)))
        specs.append(call.spec(replace(choice, constants=own)))
    return Launches(
        kernels=tuple(specs), launches=(), draws=tuple(found), arrays=draws.arrays(plan.limits)
    )


def draws_of(
    sequences: Sequence[SampledSequence],
    rows: list[int] | None = None,
    scorings: Sequence[Scoring] = (),
) -> StepWants:
    """What is wanted of a step; by default each draws from its own row."""
    rows = list(range(len(sequences))) if rows is None else rows
    return StepWants(sequences, rows, [len(each.token_ids) for each in sequences], list(scorings))


class Device:
    """A sampler on a device whose logits the test writes."""

    def __init__(self, vocab_size: int, constants: Mapping[str, Constant] = SMALL) -> None:
        self._vocab_size = vocab_size
        plan = plan_of(vocab_size)
        launches = launches_of(plan, constants)
        self.driver = SimulatedDriver()
        self.memory = Memory.take(self.driver, plan, launches, PoolSize(0, 0), weight_bytes=0)
        built = BuiltLaunches(launches=launches, binaries=tuple(map(sketch, launches.kernels)))
        program = LaunchedProgram(self.driver, built, lambda file: b"", self.memory.address)
        self.sampler = DeviceSampler(
            self.driver, self.memory, program, launches.arrays, vocab_size,
            plan.limits.max_logit_rows,
        )  # fmt: skip
        self.host = self.sampler.host_draws()

    def takes(self, sequences: Sequence[SampledSequence], rows: list[int]) -> bool:
        return self.fits(draws_of(sequences, rows))

    def fits(self, draws: StepWants) -> bool:
        """Whether the device takes the draws; if so, they are filled in."""
        taken = self.sampler.takes(draws)
        if taken:
            self.host.fill(draws, least=0)
        return taken

    def sample(
        self,
        logits: Float32,
        sequences: Sequence[SampledSequence],
        rows: list[int] | None = None,
    ) -> list[TokenScore | IngotError]:
        """As `Sampler.sample`, by default from row i for sequence i; the logits stay."""
        return self.run(logits, draws_of(sequences, rows)).tokens

    def run(self, logits: Float32, draws: StepWants) -> StepResult:
        """All that is wanted of logits [R, V], which stay."""
        assert self.fits(draws)
        address = self.memory.address(LaunchArgument(buffer=LOGITS))
        self.driver.upload(address, np.ascontiguousarray(logits, np.float32))
        self.sampler.upload(self.host)
        self.sampler.launch(self.host.sizes)
        self.sampler.download(self.host)
        self.driver.synchronize()
        return StepResult(self.host.drawn(), self.host.scored(), {LOGITS: logits[:0]}, 0)

    def logits(self, num_rows: int) -> Float32:
        """The first rows of logits, as the last draws have left them."""
        found = np.empty((num_rows, self._vocab_size), np.float32)
        self.driver.download(found, self.memory.address(LaunchArgument(buffer=LOGITS)))
        self.driver.synchronize()
        return found
