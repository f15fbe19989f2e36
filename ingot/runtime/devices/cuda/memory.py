"""The memory of a model on a device: its weights, caches, temporaries, inputs and outputs."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from math import prod

import numpy as np

from ingot.artifact.launches import WORKSPACE, Argument, DrawArray, Launches
from ingot.artifact.plan import Buffer, Plan
from ingot.artifact.reader import Artifact, weights_name
from ingot.artifact.tensors import ALIGNMENT
from ingot.errors import ArtifactError, ResourceError
from ingot.runtime.devices.cpu import weight_offsets
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.memory import align

PIECE_BYTES = 32 << 20


class Memory:
    """Allocates everything that a plan needs, and says where an argument lies.

    Args:
        launches: says how large the workspace is, and which arrays drawing needs.
        num_pages: pages of the KV pool.

    Raises ResourceError where the device has too little memory, before anything is allocated.
    """

    def __init__(
        self, driver: Driver, plan: Plan, launches: Launches, num_pages: int, weight_bytes: int
    ) -> None:
        self._plan = plan
        self._pages = [align(size * num_pages, ALIGNMENT) for size in plan.page_sizes()]
        arrays = _arrays(plan, launches)
        sizes = {
            "the weights": weight_bytes,
            "the KV cache": sum(self._pages),
            "temporaries": plan.memory.arena_bytes,
            "the workspace": launches.workspace_bytes,
            "inputs and outputs": sum(arrays.values()),
        }
        _check_room(sizes, driver.free_bytes())
        self.weights, cache, self._arena, self._workspace, place = map(
            driver.allocate, sizes.values()
        )
        self._weight_offsets: dict[str, int] = {}
        self._states = _state_addresses(plan, cache, self._pages)
        self._arrays: dict[str, int] = {}
        for name, nbytes in arrays.items():
            self._arrays[name] = place
            place += nbytes

    def upload_weights(self, driver: Driver, artifact: Artifact, layout: str) -> None:
        """Copies the weights from their file, piece by piece. Raises ArtifactError."""
        fd, header = artifact.open_weights(layout)
        with os.fdopen(fd, "rb") as file:
            offsets = weight_offsets(self._plan, header, weights_name(layout))
            names = [buffer.name for buffer in self._plan.of_kind("weight")]
            self._weight_offsets = dict(zip(names, offsets, strict=True))
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                whole = np.frombuffer(mapped, np.uint8)
                for start in range(0, len(whole), PIECE_BYTES):
                    driver.upload(self.weights + start, whole[start : start + PIECE_BYTES])
                driver.synchronize()
                del whole

    def address(self, argument: Argument) -> int:
        """Where an argument lies. Raises ArtifactError for a buffer that has no memory."""
        return self._base(argument) + argument.offset

    def array(self, name: str) -> int:
        """Where an input, an output or an array of drawing begins. The latter lie side by side,
        each from the next multiple of 64 bytes on."""
        return self._arrays[name]

    def _base(self, argument: Argument) -> int:
        if argument.buffer == WORKSPACE:
            return self._workspace
        buffer = self._plan.by_name.get(argument.buffer)
        if buffer is not None and buffer.kind == "arena":
            return self._arena + buffer.offset
        if argument.buffer in self._weight_offsets:
            return self.weights + self._weight_offsets[argument.buffer]
        if argument.buffer in self._arrays:
            return self._arrays[argument.buffer]
        if argument.buffer in self._states:
            return self._states[argument.buffer][argument.array]
        raise ArtifactError(f"kernels.json: {argument.buffer!r} has no memory")


def fixed_bytes(plan: Plan, launches: Launches, weight_bytes: int) -> int:
    """Bytes that a plan takes besides its KV pool."""
    arrays = sum(_arrays(plan, launches).values())
    return weight_bytes + plan.memory.arena_bytes + launches.workspace_bytes + arrays


def array_bytes(array: DrawArray) -> int:
    """Bytes from an array of drawing to the next."""
    return align(np.dtype(array.dtype).itemsize * prod(array.shape), ALIGNMENT)


def _arrays(plan: Plan, launches: Launches) -> dict[str, int]:
    """For each input, output and array of drawing, its bytes."""
    buffers = [*plan.of_kind("input"), *plan.of_kind("output")]
    nbytes = {each.name: align(_nbytes(plan, each), ALIGNMENT) for each in buffers}
    return nbytes | {each.name: array_bytes(each) for each in launches.arrays}


def _check_room(sizes: dict[str, int], free: int) -> None:
    needed = sum(sizes.values())
    if needed > free:
        parts = ", ".join(f"{size / 1e6:.1f} MB for {what}" for what, size in sizes.items())
        raise ResourceError(
            f"the model needs {needed / 1e6:.1f} MB on the GPU, which has {free / 1e6:.1f} MB "
            f"free: {parts}",
            hint="Pass a smaller kv_cache_bytes or max_model_len.",
        )


def _nbytes(plan: Plan, buffer: Buffer) -> int:
    return buffer.format.nbytes(prod(map(plan.limits.bound, buffer.shape)))


def _state_addresses(plan: Plan, base: int, sizes: Sequence[int]) -> dict[str, list[int]]:
    """For each state, where its arrays lie."""
    found: dict[str, list[int]] = {}
    places = iter(base + sum(sizes[:i]) for i in range(len(sizes)))
    for state in plan.of_kind("state"):
        found[state.name] = [next(places) for _ in range(1 + state.format.is_scaled)]
    return found
