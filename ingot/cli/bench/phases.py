"""Running a model in phases, each beside the limit of this machine that it could reach."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import reduce
from statistics import median

import numpy as np
import numpy.typing as npt

from ingot.artifact.cost import Cost, StepShape, total
from ingot.artifact.plan import Plan
from ingot.artifact.step_cost import kernel_costs
from ingot.runtime.config import EngineConfig
from ingot.runtime.devices.cpu import CpuExecutor
from ingot.runtime.engine import Engine
from ingot.runtime.limits import LimitsMeter, MachineLimits
from ingot.runtime.params import SamplingParams
from ingot.runtime.sequence import Sequence

Seconds = npt.NDArray[np.float64]
Rounds = Generator[Seconds, None, None]
STEPS = 8  # decode steps of a round; the round's figure is their median
LIMIT_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A kind of step: the prefill of one prompt, or the decoding of some sequences at once."""

    name: str
    sequences: int
    prompt_tokens: int
    decodes: bool

    def tokens(self, rounds: int) -> int:
        """Tokens of a sequence at the end: a phase times its steps, and traces as many again."""
        return self.prompt_tokens + (2 * rounds * STEPS if self.decodes else 0) + 1


def prefill(tokens: int) -> Phase:
    return Phase(name=f"prefill {tokens}", sequences=1, prompt_tokens=tokens, decodes=False)


def decode(sequences: int, context: int) -> Phase:
    many = f" {sequences} at once," if sequences > 1 else ""
    name = f"decode{many} context {context}"
    return Phase(name=name, sequences=sequences, prompt_tokens=context, decodes=True)


@dataclass(frozen=True, slots=True)
class Trace:
    """A round with the clock on: the limits around it, and the seconds of each kernel."""

    limits: MachineLimits
    kernel_seconds: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseResult:
    """A phase as it was measured; figures are medians over its rounds.

    `cost` is that of one decode step, or of all steps of a prefill. `traces` are the rounds in
    which kernels were timed, if any. Each round has the better of the limits measured right before
    and after it, because the bandwidth of a shared machine changes from second to second.
    """

    phase: Phase
    cost: Cost
    tokens: int
    round_seconds: list[float]
    round_limits: list[MachineLimits]
    kernel_costs: list[Cost] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)

    @property
    def kernel_seconds(self) -> list[float]:
        return [median(each) for each in zip(*(t.kernel_seconds for t in self.traces), strict=True)]

    @property
    def seconds(self) -> float:
        return median(self.round_seconds)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def limits(self) -> MachineLimits:
        """The best that were seen in any round."""
        return reduce(MachineLimits.best, self.round_limits)

    @property
    def share(self) -> float:
        """The share of the limit: the least time that the machine needs, over the time it took."""
        rounds = zip(self.round_limits, self.round_seconds, strict=True)
        return median(limits.seconds(self.cost) / seconds for limits, seconds in rounds)

    @property
    def bound(self) -> str:
        memory = self.limits.memory_seconds(self.cost) >= self.limits.arithmetic_seconds(self.cost)
        return "memory" if memory else "arithmetic"


class PhaseRunner:
    """Runs phases in one engine and measures the limits between their rounds."""

    def __init__(
        self, executor: CpuExecutor, plan: Plan, meter: LimitsMeter, *, rounds: int, ops: bool
    ) -> None:
        self._executor, self._plan, self._meter = executor, plan, meter
        self._rounds, self._ops = rounds, ops
        limits = executor.limits
        # A prefix cache would spare the work that is to be measured.
        config = EngineConfig(prefix_cache=False)
        self._engine = Engine(executor, max_model_len=limits.max_model_len, config=config)
        self._random = np.random.default_rng(0)

    def run(self, phase: Phase) -> PhaseResult:
        """Runs rounds of a phase as users run it, and then, if asked, with its clock on."""
        rounds = self._decodes(phase) if phase.decodes else self._prefills(phase)
        timed = list(self._beside_limits(rounds))
        traces = self._trace(rounds) if self._ops else []
        rounds.close()
        return PhaseResult(
            phase=phase,
            cost=total(self._costs(phase)),
            tokens=phase.sequences * (1 if phase.decodes else phase.prompt_tokens),
            round_seconds=[float(seconds.sum()) for _, seconds in timed],
            round_limits=[limits for limits, _ in timed],
            kernel_costs=self._costs(phase, done=self._rounds) if traces else [],
            traces=traces,
        )

    def close(self) -> None:
        """Closes the engine and with it the executor."""
        self._engine.close()

    def _beside_limits(self, rounds: Rounds) -> Iterator[tuple[MachineLimits, Seconds]]:
        """Rounds, each with the better of the limits measured before and after it."""
        before = self._meter.measure(LIMIT_TRIES)
        for _ in range(self._rounds):
            seconds = next(rounds)
            after = self._meter.measure(LIMIT_TRIES)
            yield before.best(after), seconds
            before = after

    def _trace(self, rounds: Rounds) -> list[Trace]:
        """Runs as many rounds again, with the clock on."""
        self._executor.clock = np.zeros(len(self._plan.kernels) + 1, np.int64)
        try:
            return [
                Trace(limits, seconds.tolist()) for limits, seconds in self._beside_limits(rounds)
            ]
        finally:
            self._executor.clock = None

    def _prefills(self, phase: Phase) -> Rounds:
        while True:
            (sequence,) = self._add(phase, max_tokens=1)
            steps = []
            while not sequence.finished:
                steps.append(self._step(sequence))
            yield np.sum(steps, axis=0)

    def _decodes(self, phase: Phase) -> Rounds:
        sequences = self._add(phase, max_tokens=phase.tokens(self._rounds) - phase.prompt_tokens)
        try:
            while min(sequence.num_generated for sequence in sequences) == 0:
                self._step(*sequences)
            while True:
                steps = [self._step(*sequences) for _ in range(STEPS)]
                yield np.median(steps, axis=0)
        finally:
            for sequence in sequences:
                self._engine.abort(sequence)

    def _step(self, *sequences: Sequence) -> Seconds:
        """Seconds of a step: the whole, or each kernel's where the clock is on.

        Raises the error with which one of the sequences has ended.
        """
        start = time.perf_counter()
        self._engine.step()
        seconds = time.perf_counter() - start
        for sequence in sequences:
            if sequence.error is not None:
                raise sequence.error
        clock = self._executor.clock
        return np.array([seconds] if clock is None else clock[:-1] * 1e-9)

    def _add(self, phase: Phase, max_tokens: int) -> list[Sequence]:
        """Sequences of random tokens."""
        params = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        shape = (phase.sequences, phase.prompt_tokens)
        prompts = self._random.integers(0, self._executor.vocab_size, shape)
        return [self._engine.add(prompt.tolist(), params) for prompt in prompts]

    def _costs(self, phase: Phase, done: int = 0) -> list[Cost]:
        """The costs of all steps of a round, kernel by kernel, when so many rounds are done.

        A decode's context grows with every step, so they are those halfway through its rounds.
        """
        if phase.decodes:
            context = phase.prompt_tokens + done * STEPS + self._rounds * STEPS // 2
            shape = StepShape(sequences=phase.sequences, context=context)
            return kernel_costs(self._plan, shape)
        most = self._executor.limits.max_num_batched_tokens
        chunks = [min(most, phase.prompt_tokens - n) for n in range(0, phase.prompt_tokens, most)]
        ends = np.cumsum(chunks).tolist()
        steps = [
            kernel_costs(
                self._plan,
                StepShape(new_tokens=new, context=end, finished=end == phase.prompt_tokens),
            )
            for new, end in zip(chunks, ends, strict=True)
        ]
        return [total(costs) for costs in zip(*steps, strict=True)]
