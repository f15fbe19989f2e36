"""Runs an artifact's CPU target: weights mapped from the file, kernels called through ctypes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ingot.artifact.host import core_cache, usable_processors
from ingot.artifact.manifest import TargetEntry
from ingot.artifact.plan import Limits, Plan
from ingot.artifact.programs import LOGITS, main_of
from ingot.artifact.reader import Artifact, weights_name
from ingot.artifact.tensors import TensorFile
from ingot.errors import IngotError, InternalError, UsageError
from ingot.runtime.arrays import Float32, StepInputs
from ingot.runtime.devices.cpu_kernels import ModelStruct
from ingot.runtime.devices.cpu_program import CpuProgram
from ingot.runtime.devices.mapped_file import MappedFile, stacks_end, weight_offsets
from ingot.runtime.devices.memory import ask_for_huge_pages
from ingot.runtime.devices.pool import Pool
from ingot.runtime.executor import Places, StepResult, StepWants, TokenScore, program_of
from ingot.runtime.initial_record import Copy
from ingot.runtime.pool_size import pool_size, widest_window

if TYPE_CHECKING:
    from ingot.runtime.devices.sampler import Sampler
    from ingot.runtime.sequence import SampledSequence

MAX_THREADS = 1024

_log = logging.getLogger(__name__)


class CpuPending:
    """A step that runs beside the caller, or when it is waited for."""

    def __init__(
        self, executor: CpuExecutor, inputs: StepInputs, wait: Callable[[], int], wants: StepWants
    ) -> None:
        self._executor = executor
        self._program, self._num_rows = inputs.program, inputs.num_results
        self._wait = wait
        self._wants = wants

    def wait(self) -> StepResult:
        code = self._wait()
        self._executor.refuse_changed_weights()
        if code:
            raise InternalError(f"the kernels refused a step with code {code}")
        return self._executor.result(self._program, self._num_rows, self._wants)


class CpuExecutor:
    """The executor of `cpu:` targets; see `Executor` and `open_executor`.

    Set `clock` to an int64 array [kernels + 1] to get the nanoseconds that each kernel of a step
    took. The last entry is everything else.
    """

    clock: npt.NDArray[np.int64] | None = None
    takes_drafts = True
    watches_host = True  # other work decides how many threads the first steps have

    def __init__(
        self,
        artifact: Artifact,
        *,
        max_model_len: int,
        kv_cache_bytes: int | None = None,
        num_threads: int | None = None,
    ) -> None:
        entry = artifact.target
        _tell_of_cache(entry)
        self._artifact: Artifact | None = artifact  # its folder is held until `close`
        plan = artifact.plan_of(entry)
        self.limits: Limits = plan.limits
        self._room = pool_size(plan, max_model_len, kv_cache_bytes)
        self.num_pages, self.num_slots = self._room
        self.window = widest_window(plan)
        self.num_threads = _count_threads(num_threads)
        self.leaves_processors = self.num_threads < usable_processors()
        self._programs: dict[str, CpuProgram] = {}
        self._weights: MappedFile | None = None
        self._pool: Pool | None = None
        try:
            self._header = self._map_weights(artifact, plan)
            self._pool = self._make_pool(plan)
            main = self._open(main_of(entry.programs))
            self.inputs = main.inputs
            self.vocab_size = main.columns.get(LOGITS, artifact.manifest.model.vocab_size)
            self._sampler = _sampler(self.vocab_size, main) if LOGITS in main.columns else None
            self._tokens: list[int] = []
        except BaseException:
            self.close()
            raise

    @property
    def pool(self) -> Pool:
        assert self._pool is not None
        return self._pool

    def open(self, program: str) -> CpuProgram:
        self._refuse_closed()
        return self._programs.get(program) or self._open(program)

    def submit(self, inputs: StepInputs, wants: StepWants, *, beside: bool = False) -> CpuPending:
        self._refuse_closed()
        for place, draw in inputs.from_draws.items():
            inputs["tokens"][place] = self._tokens[draw]
        self.pool.copy(inputs.copies)
        started = self._programs[inputs.program].start(inputs, beside=beside, clock=self.clock)
        return CpuPending(self, inputs, started, wants)

    def can_follow(self, wants: StepWants) -> bool:
        return False  # the processors are busy with the step that is under way

    def draw(
        self, logits: Float32, sequences: Sequence[SampledSequence]
    ) -> list[TokenScore | IngotError]:
        assert self._sampler is not None, "its program has logits"
        return self._sampler.sample(logits, sequences)

    def copy_records(self, copies: Sequence[Copy]) -> None:
        self._refuse_closed()
        self.pool.copy(copies)

    def read_states(self, places: Places, take: Callable[[memoryview], Any]) -> None:
        self._refuse_closed()
        self.pool.states.read(places, take)

    def write_states(self, places: Places, fill: Callable[[memoryview], Any]) -> None:
        self._refuse_closed()
        self.pool.states.write(places, fill)

    def result(self, program: str, num_rows: int, wants: StepWants) -> StepResult:
        """Draws tokens and scores from the rows that the last step returned, as `wants` asks."""
        rows = self._programs[program].rows(num_rows)
        if self._sampler is None:
            return StepResult([], [], wants.kept_of(rows), 0.0)
        done = self._sampler.result(rows, wants)
        self._tokens = done.token_ids
        return done

    def refuse_changed_weights(self) -> None:
        """Raises ArtifactError if what a step computed may come of other weights."""
        if self._weights is not None:
            self._weights.refuse_changed()

    def close(self) -> None:
        for program in self._programs.values():
            program.close()
        self._programs.clear()
        if self._pool is not None:
            self._pool.region.close()
            self._pool = None
        if self._weights is not None:
            self._weights.close()
            self._weights = None
        self._artifact = None

    def _refuse_closed(self) -> None:
        if not self._programs:
            raise UsageError("this model is closed", hint="Open it again with LLM(path).")

    def _open(self, name: str) -> CpuProgram:
        """Loads a program over the weights and pages that are there."""
        assert self._artifact is not None
        program_of(self._artifact, name)
        program = CpuProgram(self._artifact, name)
        try:
            model = ModelStruct(
                num_pages=self.num_pages,
                num_threads=self.num_threads,
                watches_host=self.watches_host,
            )
            weights = self._addresses(program.plan, self._artifact.target.layout)
            program.open(weights, self.pool.addresses, model)
        except BaseException:
            program.close()
            raise
        self._programs[name] = program
        return program

    def _map_weights(self, artifact: Artifact, plan: Plan) -> TensorFile:
        """Maps the weights file, and returns what lies in it."""
        layout = artifact.target.layout
        fd, header = artifact.open_weights(layout)
        self._weights = MappedFile(fd, weights_name(layout))
        # Huge pages would read neighbours of an expert that nobody may ever pick.
        ask_for_huge_pages(self._weights.map, stacks_end(plan, header))
        return header

    def _addresses(self, plan: Plan, layout: str) -> list[int]:
        """The address of each weight of a plan."""
        assert self._weights is not None
        offsets = weight_offsets(plan, self._header, weights_name(layout))
        return [self._weights.address + offset for offset in offsets]

    def _make_pool(self, plan: Plan) -> Pool:
        step_pages = -(-plan.limits.max_num_batched_tokens // plan.limits.page_size)
        return Pool(plan.state_arrays(), self._room, step_pages)


def _sampler(vocab_size: int, program: CpuProgram) -> Sampler:
    # Models of whole texts, which start in less time than this import takes, draw nothing.
    from ingot.runtime.devices.sampler import Sampler

    return Sampler(vocab_size, program.kernels)


def _tell_of_cache(target: TargetEntry) -> None:
    """Tells where this host has less cache than the kernels of a target are cut for."""
    needed, there = target.core_cache_bytes, core_cache()
    if there is not None and there < needed:
        _log.info(
            "%s is cut for processors with %d KiB of L2 cache, and those here have %d: it may be "
            "slower than it could be",
            *(target.name, needed // 1024, there // 1024),
        )


def _count_threads(num_threads: int | None) -> int:
    if num_threads is None:
        return usable_processors()
    if isinstance(num_threads, bool) or not 1 <= num_threads <= MAX_THREADS:
        raise UsageError(f"num_threads is {num_threads}", hint=f"Supported: 1 to {MAX_THREADS}.")
    return num_threads
