"""Runs an artifact's CUDA target: launches one by one, or a whole step of decode at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from ingot.artifact.codec import decode_built
from ingot.artifact.launches import MOST_KEYS, MOST_ROWS, BuiltLaunches
from ingot.artifact.plan import Limits, Plan
from ingot.artifact.reader import Artifact, weights_name
from ingot.artifact.step import LOGITS, SYMBOLS
from ingot.errors import (
    DeviceError,
    IncompatibleHostError,
    IngotError,
    ResourceError,
    UsageError,
)
from ingot.runtime.arrays import Float32, StepInputs
from ingot.runtime.devices.cpu import vocab_size, widest_window
from ingot.runtime.devices.cuda.check import check_built
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.cuda.library import open_driver
from ingot.runtime.devices.cuda.memory import Memory, fixed_sizes
from ingot.runtime.devices.cuda.program import Program
from ingot.runtime.devices.cuda.room import pages_within
from ingot.runtime.devices.cuda.sampler import DeviceSampler
from ingot.runtime.devices.sampler import Sampler, drawn
from ingot.runtime.executor import Draw, Drawn, Draws
from ingot.runtime.sampling_state import SampledSequence

_REOPEN = "Close this model, and open it again. nvidia-smi says whether the GPU is lost."


class CudaPending:
    """A step that the device has been given."""

    def __init__(
        self, executor: CudaExecutor, num_rows: int, draws: Draws, by_device: bool
    ) -> None:
        self._executor = executor
        self._num_rows = num_rows
        self._draws = draws
        self._by_device = by_device

    def wait(self) -> Drawn:
        return self._executor.drawn(self._num_rows, self._draws, self._by_device)


class CudaExecutor:
    """The executor of `cuda:` targets; see `Executor` and `open_executor`.

    Args:
        driver: of the device to run on; None opens the first one.

    Steps in which every sequence has one token are decodes. They are padded to the next bucket of
    1, 2, 4, 8 ... sequences, and each bucket is captured once into a graph of all its launches.
    """

    leaves_processors = True

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
        self.vocab_size = vocab_size(plan, entry.step.plan)
        self.window = widest_window(plan)
        self.inputs = (StepInputs(plan.limits), StepInputs(plan.limits))
        built = read_built(artifact, plan)
        driver = driver or open_driver(artifact.gpu)
        self._driver: Driver | None = driver
        self._failure: IngotError | None = None
        self._graphs: dict[int, Any] = {}
        self._tokens: list[int] = []
        try:
            self._memory = self._take(driver, artifact, built, max_model_len, kv_cache_bytes)
            folder = PurePosixPath(entry.step.kernels).parent
            with self._memory.filling(driver, artifact, entry.layout):
                self._program = Program(
                    driver,
                    built,
                    lambda name: artifact.read(f"{folder}/{name}"),
                    self._memory.address,
                )
                logits = driver.host_memory(4 * plan.limits.max_logit_rows * self.vocab_size)
            self._logits = logits.view(np.float32).reshape(-1, self.vocab_size)
            self._sampler = Sampler(self.vocab_size)
            self._device_sampler = DeviceSampler(
                driver, self._memory, self._program, built.launches.arrays, self.vocab_size
            )
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
        self.num_pages = pages_within(plan, fixed, free, max_model_len, kv_cache_bytes)
        return Memory(driver, plan, launches, self.num_pages, weight_bytes)

    def submit(self, inputs: StepInputs, draws: Draws, *, beside: bool = False) -> CudaPending:
        num_rows = inputs.num_rows
        with self._running() as driver:
            by_device = self._queue(driver, inputs, draws)
        return CudaPending(self, num_rows, draws, by_device)

    def _queue(self, driver: Driver, inputs: StepInputs, draws: Draws) -> bool:
        """Queues a step and its draws; False where the host has to draw."""
        for place, draw in inputs.from_draws.items():
            inputs["tokens"][place] = self._tokens[draw]
        num_rows = inputs.num_rows
        bucket = self._bucket(inputs)
        if bucket:
            pad(inputs, bucket)
        sizes = self._sizes(inputs)
        self._upload(driver, inputs, sizes)
        if bucket:
            self._replay(driver, bucket, sizes)
        else:
            self._program.launch(sizes)
        # Prepared while the device runs the step.
        by_device = self._device_sampler.prepare(draws)
        if num_rows and (draws.scorings or draws.kept or not by_device):
            driver.download(self._logits[:num_rows], self._memory.array(LOGITS))
        if by_device:  # only after the download: edits change the logits
            self._device_sampler.launch()
        return by_device

    def draw(
        self, logits: Float32, sequences: Sequence[SampledSequence]
    ) -> list[Draw | IngotError]:
        return self._sampler.sample(logits, sequences)

    def drawn(self, num_rows: int, draws: Draws, by_device: bool) -> Drawn:
        """What is wanted of the logits of the last step, once it is done."""
        with self._running() as driver:
            driver.synchronize()
        left = replace(draws, sequences=(), rows=[]) if by_device else draws
        done = drawn(self._sampler, self._logits[:num_rows], left)
        if by_device:
            done.tokens = self._device_sampler.drawn()
        self._tokens = done.token_ids
        return done

    def close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()
        for name in ("_logits", "_device_sampler"):  # they look into memory of the driver
            self.__dict__.pop(name, None)

    @contextmanager
    def _running(self) -> Iterator[Driver]:
        """The driver, for work of a step. Once any of it failed, none is done any more: nothing is
        certain of a device in the middle of a step."""
        if self._driver is None:
            raise UsageError("this model is closed", hint="Open it again with LLM(path).")
        if self._failure is not None:
            raise DeviceError(
                f"the GPU failed in an earlier step: {self._failure.found}", hint=_REOPEN
            )
        try:
            yield self._driver
        except (DeviceError, ResourceError, IncompatibleHostError) as error:
            self._failure = error
            raise

    def _bucket(self, inputs: StepInputs) -> int:
        """The bucket of a decode; 0 for any other step."""
        count = inputs.num_seqs
        if not count or inputs.num_tokens != count or inputs.num_rows != count:
            return 0
        return min(1 << (count - 1).bit_length(), self._largest_bucket)

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

    def _upload(self, driver: Driver, inputs: StepInputs, sizes: dict[str, int]) -> None:
        for array in self._plan.spec.inputs:
            used = inputs[array.name][: sizes[str(array.shape[0])]]
            if used.size:
                driver.upload(self._memory.array(array.name), used)

    def _replay(self, driver: Driver, bucket: int, sizes: dict[str, int]) -> None:
        """Runs a decode by the graph of its bucket, which is captured when it is first needed."""
        if bucket not in self._graphs:
            driver.begin_capture()
            try:
                self._program.launch({**sizes, MOST_KEYS: self.limits.max_model_len})
            except BaseException:
                with suppress(IngotError):
                    driver.end_capture()
                raise
            self._graphs[bucket] = driver.end_capture()
        driver.replay(self._graphs[bucket])


def read_built(artifact: Artifact, plan: Plan) -> BuiltLaunches:
    """What the target's `kernels.json` says of its plan. Raises ArtifactError."""
    step, files = artifact.target.step, artifact.manifest.files
    built = decode_built(artifact.read(step.kernels), file=step.kernels)
    folder = f"{PurePosixPath(step.kernels).parent}/"
    beside = {name.removeprefix(folder) for name in files if name.startswith(folder)}
    check_built(built, step.kernels, plan, files[step.plan].sha256, beside)
    return built


def pad(inputs: StepInputs, bucket: int) -> None:
    """Fills a decode up with sequences that have no token, and tokens that nobody stores."""
    count = inputs.num_seqs
    rest = slice(count, bucket)
    inputs["tokens"][rest] = inputs["positions"][rest] = inputs["logit_rows"][rest] = 0
    inputs["slots"][rest] = -1
    inputs["spans"][rest] = count, count, 0
    inputs.num_tokens = inputs.num_seqs = inputs.num_rows = bucket
