"""Runs an artifact's CUDA target: launches one by one, or a whole step of decode at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from ingot.artifact.codec import decode_built
from ingot.artifact.launches import MOST_KEYS, MOST_ROWS, BuiltLaunches
from ingot.artifact.plan import Limits
from ingot.artifact.reader import Artifact, weights_name
from ingot.artifact.step import LOGITS, SYMBOLS
from ingot.errors import IngotError, UsageError
from ingot.runtime.arrays import Float32, StepInputs
from ingot.runtime.devices.cpu import count_pages, vocab_size, widest_window
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.cuda.library import open_driver
from ingot.runtime.devices.cuda.memory import Memory, fixed_bytes
from ingot.runtime.devices.cuda.program import Program
from ingot.runtime.devices.cuda.sampler import DeviceSampler
from ingot.runtime.devices.sampler import Sampler, drawn
from ingot.runtime.executor import Draw, Drawn, Draws
from ingot.runtime.sampling_state import SampledSequence

KV_SHARE = 0.9  # of the memory that is left for keys and values, unless a size is given


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
        built = decode_built(artifact.read(entry.step.kernels), file=entry.step.kernels)
        driver = driver or open_driver(artifact.gpu)
        self._driver: Driver | None = driver
        self._graphs: dict[int, Any] = {}
        self._tokens: list[int] = []
        try:
            self._memory = self._fill(driver, artifact, built, max_model_len, kv_cache_bytes)
            folder = PurePosixPath(entry.step.kernels).parent
            self._program = Program(
                driver, built, lambda name: artifact.read(f"{folder}/{name}"), self._memory.address
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

    def _fill(
        self,
        driver: Driver,
        artifact: Artifact,
        built: BuiltLaunches,
        max_model_len: int,
        kv_cache_bytes: int | None,
    ) -> Memory:
        """Takes the memory of the model, and fills in its weights."""
        plan, launches, layout = self._plan, built.launches, artifact.target.layout
        weight_bytes = artifact.manifest.files[weights_name(layout)].size
        spare = driver.free_bytes() - fixed_bytes(plan, launches, weight_bytes)
        spare_for_pages = max(0, int(spare * KV_SHARE))
        self.num_pages = count_pages(plan, max_model_len, kv_cache_bytes, spare_for_pages)
        memory = Memory(driver, plan, launches, self.num_pages, weight_bytes)
        memory.upload_weights(driver, artifact, layout)
        return memory

    def submit(self, inputs: StepInputs, draws: Draws, *, beside: bool = False) -> CudaPending:
        driver = self._open()
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
        return CudaPending(self, num_rows, draws, by_device)

    def draw(
        self, logits: Float32, sequences: Sequence[SampledSequence]
    ) -> list[Draw | IngotError]:
        return self._sampler.sample(logits, sequences)

    def drawn(self, num_rows: int, draws: Draws, by_device: bool) -> Drawn:
        """What is wanted of the logits of the last step, once it is done."""
        self._open().synchronize()
        left = replace(draws, sequences=(), rows=[]) if by_device else draws
        done = drawn(self._sampler, self._logits[:num_rows], left)
        if by_device:
            done.tokens = self._device_sampler.drawn()
        self._tokens = done.token_ids
        return done

    def close(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None
        for name in ("_logits", "_device_sampler"):  # they look into memory of the driver
            self.__dict__.pop(name, None)

    def _open(self) -> Driver:
        if self._driver is None:
            raise UsageError("this model is closed", hint="Open it again with LLM(path).")
        return self._driver

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
            self._program.launch({**sizes, MOST_KEYS: self.limits.max_model_len})
            self._graphs[bucket] = driver.end_capture()
        driver.replay(self._graphs[bucket])


def pad(inputs: StepInputs, bucket: int) -> None:
    """Fills a decode up with sequences that have no token, and tokens that nobody stores."""
    count = inputs.num_seqs
    rest = slice(count, bucket)
    inputs["tokens"][rest] = inputs["positions"][rest] = inputs["logit_rows"][rest] = 0
    inputs["slots"][rest] = -1
    inputs["spans"][rest] = count, count, 0
    inputs.num_tokens = inputs.num_seqs = inputs.num_rows = bucket
