"""Has a row the same bits in steps of all sizes? Kernel by kernel, so that a fault has a name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.gpu.results import Faults, Values
from bench.gpu.setting import Setting, built_of
from ingot.artifact.formats import stored_bytes
from ingot.artifact.launches import BuiltLaunches, LaunchArgument
from ingot.artifact.plan import Buffer, Plan
from ingot.runtime.arrays import StepInputs
from ingot.runtime.devices import open_executor
from ingot.runtime.devices.cuda.executor import CudaExecutor
from ingot.targets.work import Work

LONGEST = 130
CHUNKS = (1, 3, 16, 17, 64, 65)  # both sides of every bound between kernels

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Result:
    """What a kernel of the plan stored: its bytes [rows, bytes of a row]."""

    kernel: str
    buffer: Buffer
    data: Bytes


def rows(
    setting: Setting, name: str, *, longest: int = LONGEST, chunks: Sequence[int] = CHUNKS
) -> None:
    """Raises RuntimeError that names the first kernel whose rows differ, for each chunk size."""
    artifact = setting.artifact(name)
    plan, built = artifact.plan_of(artifact.target), built_of(artifact)
    longest = min(longest, plan.limits.max_model_len, plan.limits.max_num_batched_tokens)
    tokens = np.random.default_rng(0).integers(0, _vocabulary(artifact), longest)
    executor = open_executor(artifact, max_model_len=longest)
    assert isinstance(executor, CudaExecutor)
    faults = Faults()
    with closing(executor):
        whole = traced(executor, plan, built, tokens, longest)
        setting.report.note(kernels=len(whole), tokens=longest)
        for size in (longest, *chunks):  # the longest twice
            with faults.of(f"in chunks of {size}"):
                found = traced(executor, plan, built, tokens, size)
                compared = first_difference(whole, found)
                setting.report.note(chunks={str(size): compared or "equal"})
                faults.add(f"in chunks of {size}", compared)
    faults.raise_found()


def _vocabulary(artifact: Any) -> int:
    return int(artifact.manifest.model.vocab_size)


def traced(
    executor: CudaExecutor, plan: Plan, built: BuiltLaunches, tokens: Any, chunk: int
) -> list[Result]:
    """What every kernel stored for a sequence that is computed in chunks of so many tokens."""
    steps = []
    for start in range(0, len(tokens), chunk):
        inputs = executor.inputs[0]
        fill(inputs, tokens[start : start + chunk], start, plan.limits.page_size)
        steps.append(list(_step(executor, plan, built, inputs)))
    return [
        Result(parts[0].kernel, parts[0].buffer, np.concatenate([part.data for part in parts]))
        for parts in zip(*steps, strict=True)
    ]


def fill(inputs: StepInputs, tokens: Any, start: int, page_size: int) -> None:
    """A step of one sequence, whose pages are the first ones in order, and its record the first;
    its last token's logits."""
    inputs.clear()
    count = len(tokens)
    places = np.arange(start, start + count)
    inputs["tokens"][:count] = tokens
    inputs["positions"][:count] = places
    inputs["spans"][0] = 0, count, start
    if "slots" in inputs:
        pages = -(-(start + count) // page_size)
        inputs["slots"][:count] = places
        inputs["page_table"][0, :pages] = np.arange(pages)
    if "records" in inputs:
        inputs["records"][0] = 0
    inputs["logit_rows"][0] = count - 1
    inputs.num_tokens, inputs.num_seqs, inputs.num_rows = count, 1, 1


def _step(
    executor: CudaExecutor, plan: Plan, built: BuiltLaunches, inputs: StepInputs
) -> Iterator[Result]:
    """Runs a step kernel by kernel, and copies what each has stored for the tokens."""
    driver, program, memory = executor._driver, executor._program, executor._memory
    assert driver is not None, "it is open"
    sizes = executor._sizes(inputs)
    next(executor._sides).inputs.upload(inputs, sizes)
    for number, group in enumerate(plan.kernels):
        work = Work(plan, group)
        own = [i for i, launch in enumerate(built.launches.launches) if launch.group == number]
        program._queue([program._launches[i] for i in own], sizes)
        for name in work.writes:
            buffer = plan.buffer(name)
            if buffer.kind != "arena" or buffer.shape[0] != "N" or buffer.format.is_scaled:
                continue
            width = stored_bytes(buffer.dtype, prod(int(dim) for dim in buffer.shape[1:]))
            data = np.empty((inputs.num_tokens, width), np.uint8)
            driver.download(data, memory.address(LaunchArgument(buffer=name)))
            driver.synchronize()
            yield Result(work.kernel, buffer, data)


def first_difference(expected: list[Result], found: list[Result]) -> Values:
    """The first kernel whose rows differ, and by how much; empty where none does."""
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        unequal = (one.data != other.data).any(axis=1)
        if unequal.any():
            a, b = (numbers(each.data, each.buffer.dtype) for each in (one, other))
            with np.errstate(invalid="ignore"):
                largest = float(np.nanmax(np.abs(a - b)))
            return {
                "kernel": one.kernel, "number": number, "buffer": one.buffer.name,
                "rows": int(unequal.sum()), "first row": int(unequal.argmax()),
                "share of values": round(float((a != b).mean()), 6), "largest": largest,
            }  # fmt: skip
    return {}


def numbers(data: Bytes, dtype: str) -> npt.NDArray[np.float32]:
    """What bytes stand for."""
    if dtype == "bfloat16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return data.view({"float16": np.float16, "float32": np.float32}[dtype]).astype(np.float32)
