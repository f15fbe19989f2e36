"""Runs an artifact's CPU target: weights mapped from the file, kernels called through ctypes."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from ingot.artifact.host import core_cache, usable_processors
from ingot.artifact.plan import Buffer, Limits, Plan
from ingot.artifact.reader import Artifact, weights_name
from ingot.artifact.step import LOGITS
from ingot.artifact.target import KIB, Target
from ingot.artifact.tensors import TensorFile
from ingot.errors import ArtifactError, IngotError, InternalError, UsageError
from ingot.runtime.arrays import Float32, StepInputs
from ingot.runtime.devices.cpu_kernels import Kernels, ModelStruct, StepStruct
from ingot.runtime.devices.mapped_file import MappedFile
from ingot.runtime.devices.memory import Region, ask_for_huge_pages
from ingot.runtime.devices.page_pool import PagePool
from ingot.runtime.devices.sampler import Sampler, drawn
from ingot.runtime.executor import Draw, Drawn, Draws
from ingot.runtime.page_count import count_pages, widest_window
from ingot.runtime.sampling_state import SampledSequence

MAX_THREADS = 1024

_log = logging.getLogger(__name__)


class CpuPending:
    """A step that runs beside the caller, or when it is waited for."""

    def __init__(self, executor: CpuExecutor, wait: Callable[[], int], draws: Draws) -> None:
        self._executor = executor
        self._wait = wait
        self._draws = draws

    def wait(self) -> Drawn:
        code = self._wait()
        self._executor.refuse_changed_weights()
        if code:
            raise InternalError(f"the kernels refused a step with code {code}")
        return self._executor.drawn(self._draws)


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
        _tell_of_cache(entry.name)
        plan = artifact.plan_of(entry)
        self.limits: Limits = plan.limits
        self.vocab_size = vocab_size(plan, entry.step.plan)
        self.num_pages = count_pages(plan, max_model_len, kv_cache_bytes)
        self.window = widest_window(plan)
        self.num_threads = _count_threads(num_threads)
        self.leaves_processors = self.num_threads < usable_processors()
        self.inputs = (StepInputs(plan.limits), StepInputs(plan.limits))
        self._kernels: Kernels | None = None
        self._regions: list[Region] = []
        self._weights: MappedFile | None = None
        try:
            weights = self._map_weights(artifact, entry.layout, plan)
            self.pool = self._make_pool(plan)
            arena = self._region(plan.memory.arena_bytes, "the arena").address
            self._logits = self._region(
                plan.limits.max_logit_rows * self.vocab_size * 4, "logits"
            ).floats(plan.limits.max_logit_rows, self.vocab_size)
            address = self._logits.ctypes.data
            self._steps = {id(inputs): _step_struct(inputs, address) for inputs in self.inputs}
            kernels = Kernels(artifact.read(entry.step.kernels), entry.step.kernels)
            self._kernels = kernels
            self._sampler = Sampler(self.vocab_size, kernels)
            self._tokens: list[int] = []
            kernels.check_plan(artifact.manifest.files[entry.step.plan].sha256)
            kernels.open(self._model_struct(weights, arena))
        except BaseException:
            self.close()
            raise

    def submit(self, inputs: StepInputs, draws: Draws, *, beside: bool = False) -> CpuPending:
        if self._kernels is None:
            raise UsageError("this model is closed", hint="Open it again with LLM(path).")
        for place, draw in inputs.from_draws.items():
            inputs["tokens"][place] = self._tokens[draw]
        step = self._steps[id(inputs)]
        for name, size in inputs.sizes().items():
            setattr(step, name, size)
        self._num_rows = inputs.num_rows
        return CpuPending(self, self._start(step, self._kernels, beside), draws)

    def _start(self, step: StepStruct, kernels: Kernels, beside: bool) -> Callable[[], int]:
        """Begins the step, or leaves that to what is returned, which waits for its code."""
        if self.clock is not None:  # a step that is timed runs alone
            return partial(kernels.run_timed, step, self.clock.ctypes.data)
        if not beside:
            return partial(kernels.run, step)
        kernels.submit(step)
        return kernels.wait

    def can_follow(self, draws: Draws) -> bool:
        return False  # the processors are busy with the step that is under way

    def draw(
        self, logits: Float32, sequences: Sequence[SampledSequence]
    ) -> list[Draw | IngotError]:
        return self._sampler.sample(logits, sequences)

    def drawn(self, draws: Draws) -> Drawn:
        """What is wanted of the logits that the last step has left."""
        done = drawn(self._sampler, self._logits[: self._num_rows], draws)
        self._tokens = done.token_ids
        return done

    def refuse_changed_weights(self) -> None:
        """Raises ArtifactError if what a step computed may come of other weights."""
        if self._weights is not None:
            self._weights.refuse_changed()

    def close(self) -> None:
        if self._kernels is not None:
            self._kernels.close()
            self._kernels = None
        self.__dict__.pop("_logits", None)  # it looks into a region
        for region in self._regions:
            region.close()
        self._regions.clear()
        if self._weights is not None:
            self._weights.close()
            self._weights = None

    def _region(self, nbytes: int, what: str) -> Region:
        self._regions.append(Region(nbytes, what))
        return self._regions[-1]

    def _map_weights(self, artifact: Artifact, layout: str, plan: Plan) -> list[int]:
        """Maps the weights file, and returns the address of each of the plan's weights."""
        fd, header = artifact.open_weights(layout)
        self._weights = MappedFile(fd, weights_name(layout))
        # Huge pages would read neighbours of an expert that nobody may ever pick.
        ask_for_huge_pages(self._weights.map, stacks_end(plan, header))
        base = self._weights.address
        return [base + offset for offset in weight_offsets(plan, header, weights_name(layout))]

    def _model_struct(self, weights: list[int], arena: int) -> ModelStruct:
        def pointers(addresses: list[int]) -> ctypes.Array[ctypes.c_void_p]:
            return (ctypes.c_void_p * len(addresses))(*addresses)

        model = ModelStruct(
            arena=arena,
            num_pages=self.num_pages,
            num_threads=self.num_threads,
            watches_host=self.watches_host,
        )
        model.arrays = pointers(weights), pointers(self.pool.addresses)
        model.weights, model.caches = (ctypes.addressof(array) for array in model.arrays)
        return model

    def _make_pool(self, plan: Plan) -> PagePool:
        step_pages = -(-plan.limits.max_num_batched_tokens // plan.limits.page_size)
        pool = PagePool(plan.page_sizes(), self.num_pages, step_pages)
        self._regions.append(pool.region)
        return pool


def _tell_of_cache(target: str) -> None:
    """Tells where this host has less cache than the kernels of a target are cut for."""
    needed, there = Target.parse(target).core_cache, core_cache()
    if there is not None and there < needed:
        _log.info(
            "%s is cut for processors with %d KiB of L2 cache, and those here have %d: it may be "
            "slower than it could be",
            *(target, needed // KIB, there // KIB),
        )


def weight_offsets(plan: Plan, header: TensorFile, file: str) -> list[int]:
    """Where each weight of the plan begins in the file."""
    offsets = []
    for buffer in plan.of_kind("weight"):
        tensor = header.tensors.get(buffer.base or buffer.name)
        dtype = "int8" if buffer.format.is_scaled or buffer.base else buffer.dtype
        if tensor is None or tensor.dtype != dtype:
            found = "no such tensor" if tensor is None else f"dtype {tensor.dtype}"
            raise ArtifactError(f"{file}: the plan has {buffer.name!r} in {buffer.dtype}: {found}")
        needed = _needed_bytes(plan, buffer)
        if tensor.nbytes < needed:
            raise ArtifactError(f"{file}: {buffer.name!r} has {tensor.nbytes} bytes, not {needed}")
        offsets.append(tensor.offset + (buffer.offset if buffer.base else 0))
    return offsets


def _needed_bytes(plan: Plan, buffer: Buffer) -> int:
    """Bytes that the tensor of a weight has at least."""
    count, *matrix = map(plan.limits.bound, buffer.shape)
    if not buffer.base:
        return buffer.format.nbytes((count, *matrix))
    return buffer.offset + (count - 1) * buffer.row_stride + buffer.format.nbytes(matrix)


def stacks_end(plan: Plan, header: TensorFile) -> int:
    """Where stacks end in the file, which begins with them; 0 where there are none."""
    tensors = (header.tensors.get(buffer.base) for buffer in plan.of_kind("weight") if buffer.base)
    return max((tensor.offset + tensor.nbytes for tensor in tensors if tensor), default=0)


def vocab_size(plan: Plan, file: str) -> int:
    outputs = plan.of_kind("output")
    if len(outputs) != 1 or len(outputs[0].shape) != 2 or not isinstance(outputs[0].shape[1], int):
        raise ArtifactError(f"{file}: a step has one output of shape (R, vocabulary)")
    return outputs[0].shape[1]


def _count_threads(num_threads: int | None) -> int:
    if num_threads is None:
        return usable_processors()
    if isinstance(num_threads, bool) or not 1 <= num_threads <= MAX_THREADS:
        raise UsageError(f"num_threads is {num_threads}", hint=f"Supported: 1 to {MAX_THREADS}.")
    return num_threads


def _step_struct(inputs: StepInputs, logits: int) -> StepStruct:
    return StepStruct(**inputs.sizes(), **inputs.addresses(), **{LOGITS: logits})
