"""An executor that takes a step before the last one is done, as a device does."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ingot.artifact.reader import Artifact
from ingot.errors import InternalError
from ingot.runtime.arrays import StepInputs
from ingot.runtime.devices.cpu import CpuExecutor
from ingot.runtime.executor import StepResult, StepWants
from ingot.runtime.params import SamplingParams
from ingot.runtime.sequence import SampledSequence, SamplingState


@dataclass
class Known:
    """A sequence, as far as the device knows it: tokens that are not there yet are 0."""

    params: SamplingParams
    token_ids: list[int]
    num_prompt: int
    key: int
    seed: int
    sampling: SamplingState


def known(sequence: SampledSequence, position: int) -> Known:
    rest = [0] * (position - len(sequence.token_ids))
    return Known(
        sequence.params, [*sequence.token_ids, *rest], sequence.num_prompt, sequence.key,
        sequence.seed, SamplingState(sequence.params),
    )  # fmt: skip


class FarPending:
    def __init__(self, executor: FarExecutor, inputs: StepInputs, draws: StepWants) -> None:
        self.executor, self.inputs, self.draws = executor, inputs, draws
        self.sequences = list(map(known, draws.sequences, draws.positions))
        self.drawn: StepResult | None = None

    def wait(self) -> StepResult:
        queue = self.executor.queue
        assert queue[0] is self, "steps are waited for in order"
        for step in queue:  # a device does not wait for the host
            step.run()
        queue.pop(0)
        assert self.drawn is not None
        return self.drawn

    def run(self) -> None:
        """Runs the step with what its arrays hold by now."""
        if self.drawn is None:
            if self.executor.fails:
                raise InternalError("the device is lost")
            draws = replace(self.draws, sequences=self.sequences)
            done = CpuExecutor.submit(self.executor, self.inputs, draws).wait()
            self.drawn = replace(done, rows={name: rows.copy() for name, rows in done.rows.items()})


class FarExecutor(CpuExecutor):
    fails = False

    def __init__(self, artifact: Artifact, **options: int) -> None:
        self.queue: list[FarPending] = []
        self.num_ahead = 0
        super().__init__(artifact, **options)  # type: ignore[arg-type]

    def can_follow(self, draws: StepWants) -> bool:
        return not draws.scorings and not draws.kept

    def submit(self, inputs: StepInputs, draws: StepWants, *, beside: bool = False) -> FarPending:
        assert len(self.queue) < 2 and (not self.queue or self.can_follow(draws))
        self.num_ahead += bool(self.queue)
        self.queue.append(FarPending(self, inputs, draws))
        return self.queue[-1]
