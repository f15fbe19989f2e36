"""A file in memory, as kernels read weights, and where each weight lies in it."""

from __future__ import annotations

import mmap
import os

from ingot.artifact.plan import Buffer, Plan
from ingot.artifact.tensors import TensorFile
from ingot.errors import ArtifactError, ResourceError
from ingot.runtime.devices.memory import map_address


class MappedFile:
    """A file that is mapped to be read. `map` stays as it is when the file is replaced or removed.

    What is written into the file itself shows in the mapping, and what is cut off is a bus error.
    So it must not be believed after that: see `refuse_changed`.

    Args:
        fd: of the file; it is closed with the mapping.
        name: of the file, for errors.

    Raises ResourceError.
    """

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._name = name
        try:
            # Before anything is read of it, so that no change falls between.
            self._seen = _seen(fd)
            self.map = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError):
                raise ResourceError(f"{name} cannot be mapped: {error.strerror}") from error
            raise
        self.address = map_address(self.map)

    def refuse_changed(self) -> None:
        """Raises ArtifactError if the file was written to since it was mapped.

        A system call without any reading: it is cheap enough to follow every step.
        """
        if _seen(self._fd) != self._seen:
            raise ArtifactError(
                f"{self._name} was written to while it was in use",
                hint="Open the model again. To change a model in use, put another folder in the "
                "place of its own.",
            )

    def close(self) -> None:
        """Ends the mapping, and closes the file."""
        self.map.close()
        os.close(self._fd)


def _seen(fd: int) -> tuple[int, int]:
    """Modification time and size of a file, which every write changes, and no new name or
    permissions do."""
    found = os.fstat(fd)
    return found.st_mtime_ns, found.st_size


def weight_offsets(plan: Plan, header: TensorFile, file: str) -> list[int]:
    """Offset of each weight of the plan in the file."""
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
    """End of the stacks, with which the file begins; 0 without stacks."""
    tensors = (header.tensors.get(buffer.base) for buffer in plan.of_kind("weight") if buffer.base)
    return max((tensor.offset + tensor.nbytes for tensor in tensors if tensor), default=0)
