"""The memory of a model on a device: its weights, caches, temporaries, inputs and outputs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod

import numpy as np

from ingot.artifact.launches import WORKSPACE, DrawArray, LaunchArgument, Launches
from ingot.artifact.plan import Buffer, Plan, StateArray
from ingot.artifact.reader import Artifact, weights_name
from ingot.artifact.tensors import ALIGNMENT, TensorFile
from ingot.errors import ArtifactError
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.cuda.room import array_sizes
from ingot.runtime.devices.cuda.upload import UploadFile, uploading
from ingot.runtime.devices.mapped_file import weight_offsets
from ingot.runtime.devices.memory import align
from ingot.runtime.pool_size import PoolSize

# Of each buffer and its number of an array, where it begins and how many bytes it has.
Spans = dict[tuple[str, int], tuple[int, int]]


class Memory:
    """Device memory of a program, and the address of each argument in it.

    `weights` and `arena` are where those begin.
    """

    def __init__(self, plan: Plan, weights: int, arena: int, spans: Spans) -> None:
        self._plan, self.weights, self.arena = plan, weights, arena
        self._spans = spans

    @classmethod
    def take(
        cls, driver: Driver, plan: Plan, launches: Launches, room: PoolSize, weight_bytes: int
    ) -> Memory:
        """Allocates everything.

        Args:
            launches: says how large the workspace is, and which arrays drawing needs.
            room: pages and slots of the pool; see `pool_within`.
        """
        sizes = array_sizes(plan, room)
        fixed = fixed_sizes(plan, launches, weight_bytes)
        weights, arena, workspace, arrays = map(driver.allocate, fixed.values())
        spans = _own_spans(plan, launches, arena, workspace, arrays)
        pool = driver.allocate(sum(sizes))
        return cls(plan, weights, arena, spans | _state_spans(plan, pool, sizes))

    def beside(self, driver: Driver, artifact: Artifact, plan: Plan, launches: Launches) -> Memory:
        """Allocates temporaries and arrays for another program, which shares these weights and
        states.

        Raises ResourceError where there is no room.
        """
        sizes = [align(size, ALIGNMENT) for size in fixed_sizes(plan, launches, 0).values()]
        # One block: where there is no room for all of it, nothing is taken.
        arena = driver.allocate(sum(sizes))
        workspace, arrays = arena + sizes[1], arena + sizes[1] + sizes[2]
        spans = _own_spans(plan, launches, arena, workspace, arrays)
        states = {state.name for state in plan.spec.states}
        spans |= {key: span for key, span in self._spans.items() if key[0] in states}
        other = Memory(plan, self.weights, arena, spans)
        fd, header = artifact.open_weights(artifact.target.layout)
        os.close(fd)
        other._place_weights(header, weights_name(artifact.target.layout))
        return other

    def _place_weights(self, header: TensorFile, name: str) -> None:
        offsets = weight_offsets(self._plan, header, name)
        for buffer, offset in zip(self._plan.of_kind("weight"), offsets, strict=True):
            tensor = header.tensors[buffer.base or buffer.name]
            nbytes = tensor.offset + tensor.nbytes - offset
            self._spans[buffer.name, 0] = self.weights + offset, nbytes

    @contextmanager
    def filling(self, driver: Driver, artifact: Artifact, layout: str) -> Iterator[None]:
        """Copies the weights from their file while the block runs. At its end they are there.

        Raises ArtifactError, and what the driver raises.
        """
        name = weights_name(layout)
        fd, header = artifact.open_weights(layout)
        with os.fdopen(fd, "rb") as file:
            self._place_weights(header, name)
            source = UploadFile(file.fileno(), artifact.manifest.files[name].size, name)
            with uploading(driver, self.weights, source):
                yield

    def copy_records(self, driver: Driver, copies: Iterable[tuple[int, int]]) -> None:
        """Queues copies of records from slots to slots, in this order."""
        arrays = zip(self._plan.state_arrays(), _names(self._plan), strict=True)
        slotted = [(self._spans[name][0], a.nbytes) for a, name in arrays if a.kind == "slotted"]
        for source, to in copies:
            for begin, nbytes in slotted:
                driver.copy(begin + to * nbytes, begin + source * nbytes, nbytes)

    def state_units(self) -> list[tuple[StateArray, int]]:
        """Each array of each state, and where it begins."""
        arrays = zip(self._plan.state_arrays(), _names(self._plan), strict=True)
        return [(array, self._spans[name][0]) for array, name in arrays]

    def address(self, argument: LaunchArgument) -> int:
        """Address of an argument. Raises ArtifactError where there is no such memory."""
        start, nbytes = self._spans.get((argument.buffer, argument.array), (0, 0))
        if not 0 <= argument.offset < nbytes:
            raise ArtifactError(
                f"kernels.json: nothing lies at byte {argument.offset} of array {argument.array} "
                f"of {argument.buffer!r:.80}",
                hint="Compile the model again.",
            )
        return start + argument.offset

    def array(self, name: str) -> int:
        """First address of an input, an output or an array of drawing. The latter lie side by side,
        each from the next multiple of 64 bytes on."""
        return self._spans[name, 0][0]


def fixed_sizes(plan: Plan, launches: Launches, weight_bytes: int) -> dict[str, int]:
    """Bytes that a plan takes besides its KV pool, by what they are for."""
    return {
        "the weights": weight_bytes,
        "temporaries": plan.memory.arena_bytes,
        "the workspace": launches.workspace_bytes,
        "inputs and outputs": sum(_arrays(plan, launches).values()),
    }


def array_bytes(array: DrawArray) -> int:
    """Bytes from an array of drawing to the next."""
    return align(np.dtype(array.dtype).itemsize * prod(array.shape), ALIGNMENT)


def _arrays(plan: Plan, launches: Launches) -> dict[str, int]:
    """Bytes of each input, output and array of drawing."""
    buffers = [*plan.of_kind("input"), *plan.of_kind("output")]
    nbytes = {each.name: align(_nbytes(plan, each), ALIGNMENT) for each in buffers}
    return nbytes | {each.name: array_bytes(each) for each in launches.arrays}


def _nbytes(plan: Plan, buffer: Buffer) -> int:
    return buffer.format.nbytes([*map(plan.limits.bound, buffer.shape)])


def _own_spans(plan: Plan, launches: Launches, arena: int, workspace: int, place: int) -> Spans:
    """Spans of temporaries, the workspace, inputs, outputs and arrays of drawing."""
    spans: Spans = {
        (buffer.name, 0): (arena + buffer.offset, plan.arena_bytes_of(buffer))
        for buffer in plan.of_kind("arena")
    }
    spans[WORKSPACE, 0] = workspace, launches.workspace_bytes
    for name, nbytes in _arrays(plan, launches).items():
        spans[name, 0] = place, nbytes
        place += nbytes
    return spans


def _state_spans(plan: Plan, base: int, sizes: Sequence[int]) -> Spans:
    """Address and bytes of each array of each state."""
    places = ((base + sum(sizes[:i]), size) for i, size in enumerate(sizes))
    return dict(zip(_names(plan), places, strict=True))


def _names(plan: Plan) -> list[tuple[str, int]]:
    """Each array of each state: the state, and the number of the array."""
    states = plan.of_kind("state")
    return [(state.name, n) for state in states for n in range(1 + state.format.is_scaled)]
