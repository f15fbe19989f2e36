"""Memory that the kernels use: anonymous, aligned, and given back when asked."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from ingot.errors import ResourceError

HUGE_PAGE_BYTES = 2 << 20
_POPULATE_WRITE = 23  # of Linux 5.14, which Python has no name for

_madvise = ctypes.CDLL(None).madvise  # mmap's would hold up all Python threads
_madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class Region:
    """Zeroed memory that costs nothing until it is touched. `address` is 2 MiB aligned."""

    def __init__(self, nbytes: int, what: str) -> None:
        self.nbytes = nbytes
        try:
            self.map = mmap.mmap(
                -1, nbytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        except OSError as error:
            raise ResourceError(
                f"{nbytes} bytes for {what}: {error.strerror}",
                hint="Pass a smaller kv_cache_bytes or max_model_len.",
            ) from error
        ask_for_huge_pages(self.map)
        base = map_address(self.map)
        self.offset = -base % HUGE_PAGE_BYTES
        self.address = base + self.offset

    def floats(self, rows: int, columns: int) -> npt.NDArray[np.float32]:
        """The region's beginning as float32 [rows, columns]."""
        array = np.frombuffer(self.map, np.float32, rows * columns, self.offset)
        return array.reshape(rows, columns)

    def touch(self, address: int, nbytes: int) -> bool:
        """Has the system give memory that is there, and changes none; False if it does not."""
        start = address - address % mmap.PAGESIZE
        return not _madvise(start, address + nbytes - start, _POPULATE_WRITE)

    def close(self) -> None:
        """Gives the memory back: now, or when the last array that looks into it is gone."""
        with suppress(BufferError):
            self.map.close()


def ask_for_huge_pages(region: mmap.mmap, start: int = 0) -> None:
    """Asks for huge pages from a byte on, a multiple of a page. In a file they hold only what is
    read from the disk from now on."""
    if hasattr(mmap, "MADV_HUGEPAGE") and start < len(region):
        with suppress(OSError):  # a kernel without huge pages: slower, nothing else
            region.madvise(mmap.MADV_HUGEPAGE, start)


def map_address(region: mmap.mmap) -> int:
    """The address of a mapping, valid until the mapping is closed."""
    return int(np.frombuffer(region, np.uint8, 1).ctypes.data)


def align(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment
