"""The kernels of a CPU target: loading `kernels.so` and calling it."""

from __future__ import annotations

import _ctypes
import ctypes
import fcntl
import itertools
import os
import platform
import struct
from typing import Any

from ingot.artifact.select import ABI
from ingot.artifact.step import LOGITS, SYMBOLS, TEXT_INPUTS
from ingot.errors import ArtifactError, IncompatibleHostError, ResourceError, UsageError
from ingot.runtime.devices.memory import Region

_MFD_NOEXEC_SEAL = 0x8  # hardened kernels demand it; mapping code needs no execute bit
_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
_loads = itertools.count(1)
_INT32 = ctypes.c_int32
_POINTER = ctypes.c_void_p


class ModelStruct(ctypes.Structure):
    """`struct ingot_model`"""

    _fields_ = [
        ("weights", _POINTER),
        ("caches", _POINTER),
        ("arena", _POINTER),
        ("num_pages", _INT32),
        ("num_threads", _INT32),
    ]


class StepStruct(ctypes.Structure):
    """`struct ingot_step`"""

    _fields_ = [
        *((symbol.name, _INT32) for symbol in SYMBOLS.values()),
        *((array.name, _POINTER) for array in TEXT_INPUTS),
        (LOGITS, _POINTER),
    ]


class SamplingStruct(ctypes.Structure):
    """`struct ingot_sampling`"""

    _fields_ = [
        *((name, _POINTER) for name in ("rows", "memory")),
        *((name, _INT32) for name in ("num_rows", "vocabulary")),
    ]


class Kernels:
    """A loaded `kernels.so`.

    `code` holds the file's bytes, whose hash was checked. They are loaded from a sealed file in
    memory, so that the code that runs is the code that was hashed, whatever happens to the file.
    Raises ArtifactError or IncompatibleHostError when they cannot be loaded here.
    """

    def __init__(self, code: bytes, name: str) -> None:
        _check_elf(code, name)
        library = _load(code, name)
        try:
            _declare(library, name)
        except BaseException:
            _ctypes.dlclose(library._handle)
            raise
        self._library = library
        self._name = name
        self._state: int | None = None
        self._model: ModelStruct | None = None
        self._sampling: SamplingStruct | None = None
        self._memory: Region | None = None

    def check_plan(self, sha256: str) -> None:
        """Raises ArtifactError for kernels generated from another plan than the one hashed.

        Their constants would not fit the memory that the plan asks for.
        """
        function = getattr(self._library, "ingot_plan", None)
        if function is None:  # of an ingot that wrote none
            return
        function.restype = ctypes.c_uint64
        if function() != int(sha256[:16], 16):
            raise ArtifactError(
                f"{self._name} was generated from another plan", hint="Compile the model again."
            )

    def open(self, model: ModelStruct) -> None:
        """Starts the threads. Raises ResourceError when there is no memory or thread for it."""
        self._model = model  # kernels may keep its pointers until they are closed
        self._state = self._library.ingot_open(ctypes.byref(model))
        if not self._state:
            raise ResourceError(
                f"no memory for {model.num_threads} threads", hint="Pass a smaller num_threads."
            )

    def run(self, step: StepStruct) -> int:
        """One step; 0, or a negative code. Other Python threads run meanwhile."""
        return int(self._library.ingot_run(self._state, step))

    def submit(self, step: StepStruct) -> None:
        """Begins a step in a thread of the kernels; it must not change until `wait` returns."""
        self._library.ingot_submit(self._state, step)

    def wait(self) -> int:
        """Waits for the step that was begun; returns as `run`. Other Python threads run."""
        return int(self._library.ingot_wait(self._state))

    def run_timed(self, step: StepStruct, times: int) -> int:
        """As `run`, and writes how long each kernel took, and last everything else.

        `times` is the address of int64 nanoseconds. Raises ArtifactError for kernels without a
        clock.
        """
        function = self._optional("ingot_run_timed")
        function.argtypes = (_POINTER, ctypes.POINTER(StepStruct), _POINTER)
        function.restype = _INT32
        return int(function(self._state, step, times))

    def measure(self, limit: int, threads: int, data: int = 0, nbytes: int = 0) -> float:
        """Measures a limit of this machine, per second; 0 if the threads cannot be started.

        `limit` is its number in `machine_limits.h`. Raises ArtifactError for kernels that cannot
        measure.
        """
        function = self._optional("ingot_measure")
        function.argtypes = (_INT32, _INT32, _POINTER, ctypes.c_int64)
        function.restype = ctypes.c_double
        return float(function(limit, threads, data, nbytes))

    def _optional(self, symbol: str) -> Any:
        """A function that runs no model, and that artifacts need not have."""
        try:
            return getattr(self._library, symbol)
        except AttributeError as error:
            raise ArtifactError(
                f"{self._name} has no {symbol}", hint="Compile the model again to measure it."
            ) from error

    def sample(self, rows: int, num_rows: int, vocab_size: int) -> None:
        """Draws from the `num_rows` structs at the address `rows`; not while a step runs.

        Other Python threads run meanwhile. Raises UsageError after `close`.
        """
        if self._state is None or self._model is None:
            raise UsageError("this model is closed", hint="Open it again with LLM(path).")
        if self._sampling is None or self._sampling.vocabulary != vocab_size:
            self._sampling = self._make_sampling(vocab_size, self._model.num_threads)
        self._sampling.rows, self._sampling.num_rows = rows, num_rows
        self._library.ingot_sample(self._state, self._sampling)

    def _make_sampling(self, vocab_size: int, num_threads: int) -> SamplingStruct:
        nbytes = self._library.ingot_sampler_bytes(vocab_size) * num_threads
        self._memory = Region(nbytes, "the sampler")
        return SamplingStruct(memory=self._memory.address, vocabulary=vocab_size)

    def close(self) -> None:
        """Joins the threads and unloads the code."""
        if self._state:
            self._library.ingot_close(self._state)
            self._state = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        _ctypes.dlclose(self._library._handle)


def _declare(library: ctypes.CDLL, name: str) -> None:
    """Gives the functions their types, once they are known to be those of this interface."""
    try:
        abi = library.ingot_abi()
        if abi != ABI:
            raise ArtifactError(f"{name} has kernel interface {abi}, not {ABI}")
        library.ingot_open.argtypes = (ctypes.POINTER(ModelStruct),)
        library.ingot_open.restype = _POINTER
        library.ingot_run.argtypes = (_POINTER, ctypes.POINTER(StepStruct))
        library.ingot_run.restype = _INT32
        library.ingot_submit.argtypes = (_POINTER, ctypes.POINTER(StepStruct))
        library.ingot_submit.restype = None
        library.ingot_wait.argtypes = (_POINTER,)
        library.ingot_wait.restype = _INT32
        library.ingot_sampler_bytes.argtypes = (_INT32,)
        library.ingot_sampler_bytes.restype = ctypes.c_int64
        library.ingot_sample.argtypes = (_POINTER, ctypes.POINTER(SamplingStruct))
        library.ingot_sample.restype = None
        library.ingot_close.argtypes = (_POINTER,)
        library.ingot_close.restype = None
    except AttributeError as error:
        raise _unloadable(name, error) from error


def _check_elf(code: bytes, name: str) -> None:
    if code[:6] != b"\x7fELF\x02\x01" or len(code) < 64:
        raise ArtifactError(f"{name} is not a 64-bit shared library")
    machine = int.from_bytes(code[18:20], "little")
    if machine != _ELF_MACHINES.get(platform.machine()):
        raise IncompatibleHostError(
            f"{name} is for ELF machine {machine}; this host is {platform.machine()}",
            hint="Compile the model for this host: --target cpu:native",
        )
    # A segment beyond the end would be a bus error in the loader, not an error that it returns.
    start, size, count = *struct.unpack_from("<Q", code, 32), *struct.unpack_from("<HH", code, 54)
    for offset in range(start, start + size * count, max(size, 1)):
        header = code[offset : offset + 56]
        if len(header) < 56 or sum(struct.unpack_from("<8xQ16xQ", header)) > len(code):
            raise ArtifactError(f"{name} is truncated", hint="Compile the model again.")


def _load(code: bytes, name: str) -> ctypes.CDLL:
    fd = _sealed_file(code)
    # The loader takes a name that it has seen for the library that it has loaded, and descriptors
    # are used again: every load spells the same path in its own way, by the bits of a counter.
    bits = "".join("/." if bit == "1" else "/" for bit in f"{next(_loads):b}")
    try:
        return ctypes.CDLL(f"/proc/self{bits}/fd/{fd}")
    except OSError as error:
        raise _unloadable(name, error) from error
    finally:
        os.close(fd)


def _unloadable(name: str, error: Exception) -> ArtifactError:
    return ArtifactError(
        f"{name} cannot be loaded: {error}", hint="Compile the model again on this host."
    )


def _sealed_file(code: bytes) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        fd = os.memfd_create("kernels.so", flags | _MFD_NOEXEC_SEAL)
    except OSError:  # a kernel that does not know the flag
        fd = os.memfd_create("kernels.so", flags)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(code)
    # F_ADD_SEALS with F_SEAL_SEAL | SHRINK | GROW | WRITE: nobody can change it any more.
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0xF)
    return fd
