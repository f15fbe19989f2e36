"""Runs an artifact's CUDA target: launches one by one, or a whole step of decode at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np

from ingot.artifact.launches import (
    DRAWS,
    EDITED,
    MOST_KEYS,
    MOST_ROWS,
    SCORED,
    BuiltLaunches,
)
from ingot.artifact.plan import Limits
from ingot.artifact.programs import LOGITS, STEP
from ingot.artifact.reader import Artifact, weights_name
from ingot.artifact.spec import SYMBOLS
from ingot.errors import (
    DeviceError,
    IncompatibleHostError,
    IngotError,
    ResourceError,
    UsageError,
)
from ingot.runtime.arrays import Float32, StepInputs
from ingot.runtime.devices.cuda.beside import BesideProgram
from ingot.runtime.devices.cuda.check import check_driver
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.cuda.host_draws import HostDraws
from ingot.runtime.devices.cuda.host_inputs import HostInputs, pad
from ingot.runtime.devices.cuda.library import open_driver
from ingot.runtime.devices.cuda.memory import Memory, fixed_sizes
from ingot.runtime.devices.cuda.program import load_program, read_built
from ingot.runtime.devices.cuda.room import pool_within
from ingot.runtime.devices.cuda.sampler import DeviceSampler
from ingot.runtime.devices.cuda.states import DeviceStates, Staging, staging
from ingot.runtime.devices.sampler import Sampler
from ingot.runtime.executor import (
    Opened,
    Places,
    StepResult,
    StepWants,
    TokenScore,
    outputs_of,
    program_of,
)
from ingot.runtime.initial_record import Copy
from ingot.runtime.pool_size import widest_window
from ingot.runtime.sequence import SampledSequence

LEAST_KEYS = 1024  # tokens of the longest sequence: below that, a graph more would save nothing
_REOPEN = "Close this model, and open it again. nvidia-smi says whether the GPU is lost."


@dataclass(frozen=True, slots=True)
class CudaPending:
    """A step that the device has been given."""

    executor: CudaExecutor
    rows: dict[str, Float32]
    wants: StepWants
    drawn_by_device: HostDraws | None
    mark: Any

    def wait(self) -> StepResult:
        return self.executor.result(self)


@dataclass(frozen=True, slots=True)
class HostSide:
    """Staging memory of a step: the host fills it, and the device copies it."""

    inputs: HostInputs
    draws: HostDraws


class CudaExecutor:
    """The executor of `cuda:` targets; see `Executor` and `open_executor`.

    Args:
        driver: of the device to run on; None opens the first one.

    Steps in which every sequence has one token are decodes. They are padded to the next bucket of
    1, 2, 4, 8 ... sequences. Each bucket is captured into a graph of all its launches, draws
    included, once for every power of two that the longest sequence stays below.

    Two steps can be under way. Each has a side of its own in the host's memory.
    """

    pool = None  # all memory is taken at once
    leaves_processors = True
    takes_drafts = False

    def __init__(
        self,
        artifact: Artifact,
        *,
        max_model_len: int,
        kv_cache_bytes: int | None = None,
        num_threads: int | None = None,
        driver: Driver | None = None,
    ) -> None:
        entry = artifact.target
        plan = self._plan = artifact.plan_of(entry)
        self.limits: Limits = plan.limits
        self.vocab_size = outputs_of(plan, entry.main.plan)[LOGITS]
        self.window = widest_window(plan)
        self.inputs = StepInputs(plan), StepInputs(plan)
        self._artifact: Artifact | None = artifact  # its folder is held until `close`
        self._beside: dict[str, BesideProgram] = {}
        built = read_built(artifact, plan, entry.main)
        driver = driver or open_driver(artifact.gpu)
        self._driver: Driver | None = driver
        self._failure: IngotError | None = None
        self._graphs: dict[tuple[int, int, bool], Any] = {}
        self._tokens: list[int] = []
        self._draws_on_device = False
        self._stages: Staging | None = None
        try:
            check_driver(built, driver.cuda_version())
            self._memory = self._take(driver, artifact, built, max_model_len, kv_cache_bytes)
            with self._memory.filling(driver, artifact, entry.layout):
                self._program = load_program(driver, artifact, entry.main, built, self._memory)
                logits = driver.host_memory(4 * plan.limits.max_logit_rows * self.vocab_size)
            self._logits = logits.view(np.float32).reshape(-1, self.vocab_size)
            self._host_sampler = Sampler(self.vocab_size)
            self._sampler = DeviceSampler(
                driver, self._memory, self._program, built.launches.arrays, self.vocab_size,
                plan.limits.max_logit_rows,
            )  # fmt: skip
            self._sides = cycle([self._side(driver), self._side(driver)])
        except BaseException:
            self.close()
            raise

    def _take(
        self,
        driver: Driver,
        artifact: Artifact,
        built: BuiltLaunches,
        max_model_len: int,
        kv_cache_bytes: int | None,
    ) -> Memory:
        """Takes the memory of the model."""
        plan, launches, layout = self._plan, built.launches, artifact.target.layout
        weight_bytes = artifact.manifest.files[weights_name(layout)].size
        fixed, free = fixed_sizes(plan, launches, weight_bytes), driver.free_bytes()
        room = pool_within(plan, fixed, free, max_model_len, kv_cache_bytes)
        self.num_pages, self.num_slots = room
        return Memory.take(driver, plan, launches, room, weight_bytes)

    def open(self, program: str) -> Opened:
        driver = self._working_driver()
        if program == STEP.name:
            return self
        if program not in self._beside:
            assert self._artifact is not None
            program_of(self._artifact, program)
            self._beside[program] = BesideProgram(driver, self._artifact, program, self._memory)
        return self._beside[program]

    def submit(self, inputs: StepInputs, wants: StepWants, *, beside: bool = False) -> CudaPending:
        with self._running() as driver:
            self._copy_records(driver, inputs.copies)
            if inputs.program == STEP.name:
                return self._queue(driver, inputs, wants)
            rows = self._beside[inputs.program].queue(driver, inputs, self._sizes(inputs))
            return CudaPending(self, rows, wants, None, driver.mark())

    def _queue(self, driver: Driver, inputs: StepInputs, wants: StepWants) -> CudaPending:
        """Queues a step and its draws, unless the host has to draw.

        The masks of grammars are computed while the device runs the step.
        """
        self._feed(inputs)
        num_rows, side, bucket = inputs.num_rows, next(self._sides), self._bucket(inputs)
        guided = any(sequence.sampling.guide for sequence in wants.sequences)
        by_device = not guided and self._fill(side, wants, bucket)
        if bucket:
            pad(inputs, bucket)
        sizes = self._sizes(inputs)
        side.inputs.upload(inputs, sizes)
        # A prompt of one token looks like a decode, and may draw for siblings, too.
        plain = by_device and side.draws.only_draws and side.draws.count == bucket
        whole = plain and not (num_rows and wants.kept)
        if bucket:
            self._replay(driver, bucket, sizes, with_draws=whole)
        else:
            self._program.launch(sizes)
        by_device = by_device or (guided and self._fill(side, wants, bucket))
        if num_rows and (wants.kept or not by_device):  # before the draws: edits change the logits
            driver.download(self._logits[:num_rows], self._memory.array(LOGITS))
        if by_device:
            if not whole:
                self._sampler.launch(side.draws.sizes)
            self._sampler.download(side.draws)
        self._draws_on_device = by_device
        rows = {LOGITS: self._logits[:num_rows]}
        return CudaPending(self, rows, wants, side.draws if by_device else None, driver.mark())

    def _fill(self, side: HostSide, wants: StepWants, bucket: int) -> bool:
        """Hands the device what it draws; False where the host has to draw."""
        if not self._sampler.takes(wants):
            return False
        side.draws.fill(wants, bucket)
        self._sampler.upload(side.draws)
        return True

    def _feed(self, inputs: StepInputs) -> None:
        """Writes the tokens that the last step draws; ~d stands for draw d on the device."""
        for place, draw in inputs.from_draws.items():
            inputs["tokens"][place] = ~draw if self._draws_on_device else self._tokens[draw]

    def can_follow(self, wants: StepWants) -> bool:
        return (
            self._draws_on_device
            # Which tokens of a prompt are scored depends on how many of them were.
            and not (wants.scorings or wants.kept)
            and not any(sequence.sampling.follows_tokens for sequence in wants.sequences)
            and self._sampler.takes(wants)
        )

    def draw(
        self, logits: Float32, sequences: Sequence[SampledSequence]
    ) -> list[TokenScore | IngotError]:
        return self._host_sampler.sample(logits, sequences)

    def copy_records(self, copies: Sequence[Copy]) -> None:
        with self._running() as driver:
            self._copy_records(driver, copies)

    def _copy_records(self, driver: Driver, copies: Sequence[Copy]) -> None:
        between: list[tuple[int, int]] = []
        for source, to in copies:
            if isinstance(source, int):
                between.append((source, to))
                continue
            self._memory.copy_records(driver, between)
            between = []
            self._states(driver).write(Places([], to), source.filler())
        if between:
            self._memory.copy_records(driver, between)

    def read_states(self, places: Places, take: Callable[[memoryview], Any]) -> None:
        with self._running() as driver:
            self._states(driver).read(places, take)

    def write_states(self, places: Places, fill: Callable[[memoryview], Any]) -> None:
        with self._running() as driver:
            self._states(driver).write(places, fill)

    def _states(self, driver: Driver) -> DeviceStates:
        return DeviceStates(driver, self._memory.state_units(), self._staging(driver))

    def _staging(self, driver: Driver) -> Staging:
        """Memory that states pass through, taken when they are first asked for."""
        if self._stages is None:
            self._stages = staging(driver, self._memory.state_units())
        return self._stages

    def result(self, step: CudaPending) -> StepResult:
        """Draws tokens and scores from the logits of a step that is done, as it wants."""
        with self._running() as driver:
            driver.wait(step.mark)
        by_device = step.drawn_by_device
        left = step.wants
        if by_device is not None:
            left = replace(left, sequences=(), rows=[], scorings=[])
        done = self._host_sampler.result(step.rows, left)
        if by_device is not None:
            done.tokens, done.scores = by_device.drawn(), by_device.scored()
        self._tokens = done.token_ids
        return done

    def close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()
        self._artifact = self._stages = None
        for name in ("_logits", "_sides", "_beside"):  # they look into memory of the driver
            self.__dict__.pop(name, None)

    def _working_driver(self) -> Driver:
        """Raises UsageError after `close`, and DeviceError where a step has failed."""
        if self._driver is None:
            raise UsageError("this model is closed", hint="Open it again with LLM(path).")
        if self._failure is not None:
            raise DeviceError(
                f"the GPU failed in an earlier step: {self._failure.found}", hint=_REOPEN
            )
        return self._driver

    @contextmanager
    def _running(self) -> Iterator[Driver]:
        """The driver, for work of a step. Once any of it failed, none is done any more: nothing is
        certain of a device in the middle of a step."""
        driver = self._working_driver()
        try:
            yield driver
        except (DeviceError, ResourceError, IncompatibleHostError) as error:
            self._failure = error
            raise

    def _bucket(self, inputs: StepInputs) -> int:
        """The bucket of a decode; 0 for any other step."""
        count = inputs.num_seqs
        if not count or inputs.num_tokens != count or inputs.num_rows != count:
            return 0
        return min(_round_up(count), self._largest_bucket)

    @property
    def _largest_bucket(self) -> int:
        limits = self.limits
        return min(limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_logit_rows)

    def _sizes(self, inputs: StepInputs) -> dict[str, int]:
        """The sizes of a step, by their symbols."""
        found = {symbol: getattr(inputs, each.name) for symbol, each in SYMBOLS.items()}
        begin, end, first = inputs["spans"][: inputs.num_seqs].T
        found[MOST_ROWS] = int((end - begin).max(initial=0))
        found[MOST_KEYS] = int((first + end - begin).max(initial=0))
        return found

    def _side(self, driver: Driver) -> HostSide:
        inputs = HostInputs(driver, self._memory, self._plan.spec.inputs, self.limits)
        return HostSide(inputs, self._sampler.host_draws())

    def _replay(self, driver: Driver, bucket: int, sizes: dict[str, int], with_draws: bool) -> None:
        """Runs a decode by its graph, which is captured when it is first needed."""
        most_keys = min(self.limits.max_model_len, _round_up(max(sizes[MOST_KEYS], LEAST_KEYS)))
        key = bucket, most_keys, with_draws
        if key not in self._graphs:
            driver.begin_capture()
            try:
                self._program.launch({**sizes, MOST_KEYS: most_keys})
                if with_draws:
                    self._sampler.launch({DRAWS: bucket, EDITED: 0, SCORED: 0})
            except BaseException:
                with suppress(IngotError):
                    driver.end_capture()
                raise
            self._graphs[key] = driver.end_capture()
        driver.replay(self._graphs[key])


def _round_up(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()
