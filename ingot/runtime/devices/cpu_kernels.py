"""The kernels of a CPU target: loading `kernels.so` and calling it."""

from __future__ import annotations

import _ctypes
import ctypes
import fcntl
import itertools
import os
import platform
import struct
from collections.abc import Callable, Iterable
from typing import Any

from ingot.artifact.select import ABI
from ingot.artifact.spec import SYMBOLS
from ingot.errors import ArtifactError, IncompatibleHostError, ResourceError, UsageError
from ingot.runtime.arrays import StepInputs
from ingot.runtime.devices.memory import Region
from ingot.runtime.process import Process

_MFD_NOEXEC_SEAL = 0x8  # hardened kernels demand it; mapping code needs no execute bit
_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
_loads = itertools.count(1)
_INT32 = ctypes.c_int32
_POINTER = ctypes.c_void_p
_WATCHER = ctypes.CFUNCTYPE(_INT32, _INT32)


class ModelStruct(ctypes.Structure):
    """`struct ingot_model`"""

    _fields_ = [
        *((name, _POINTER) for name in ("weights", "caches", "arena")),
        *((name, _INT32) for name in ("num_pages", "num_threads", "watches_host")),
    ]


class StepStruct(ctypes.Structure):
    """`struct ingot_step`"""

    _fields_ = [
        *((symbol.name, _INT32) for symbol in SYMBOLS.values()),
        *((name, _POINTER) for name in ("inputs", "outputs")),
    ]


def pointers(addresses: Iterable[int]) -> ctypes.Array[ctypes.c_void_p]:
    """An array of pointers, as structs take it."""
    found = [*addresses]
    return (_POINTER * len(found))(*found)


def step_struct(inputs: StepInputs, outputs: Iterable[int]) -> StepStruct:
    """A step with those inputs, whose outputs lie at these addresses, in the order of the spec."""
    struct = StepStruct(**inputs.sizes())
    struct.arrays = pointers(inputs.addresses().values()), pointers(outputs)
    struct.inputs, struct.outputs = (ctypes.addressof(array) for array in struct.arrays)
    return struct


class SamplingStruct(ctypes.Structure):
    """`struct ingot_sampling`"""

    _fields_ = [
        *((name, _POINTER) for name in ("rows", "memory")),
        *((name, _INT32) for name in ("num_rows", "vocabulary")),
    ]


# The functions of a library: what each returns, and its arguments.
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "ingot_open": (_POINTER, ctypes.POINTER(ModelStruct)),
    "ingot_run": (_INT32, _POINTER, ctypes.POINTER(StepStruct)),
    "ingot_submit": (None, _POINTER, ctypes.POINTER(StepStruct)),
    "ingot_wait": (_INT32, _POINTER),
    "ingot_sampler_bytes": (ctypes.c_int64, _INT32),
    "ingot_sample": (None, _POINTER, ctypes.POINTER(SamplingStruct)),
    "ingot_close": (None, _POINTER),
    "ingot_plan": (ctypes.c_uint64,),
    "ingot_run_timed": (_INT32, _POINTER, ctypes.POINTER(StepStruct), _POINTER, _POINTER),
    "ingot_measure": (ctypes.c_double, _INT32, _INT32, _POINTER, ctypes.c_int64),
}


# Is told of every kernel before it runs, and of the end of the step; says whether it is to run.
Watcher = Callable[[int], bool]


class Kernels:
    """A loaded `kernels.so`.

    `code` holds the file's bytes, whose hash was checked. They are loaded from a sealed file in
    memory, so that the code that runs is the code that was hashed, whatever happens to the file.
    Raises ArtifactError or IncompatibleHostError when they cannot be loaded here, and
    ResourceError when there is no memory for them.
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
        self._process = Process()
        self._state: int | None = None
        self._model = ModelStruct()
        self._sampling: SamplingStruct | None = None
        self._memory: Region | None = None

    def check_plan(self, sha256: str) -> None:
        """Raises ArtifactError for kernels generated from another plan than the one hashed.

        Their constants would not fit the memory that the plan asks for.
        """
        if self._library.ingot_plan() != int(sha256[:16], 16):
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
        """One step; 0, or a negative code. Other Python threads run meanwhile.

        This and what follows raise UsageError after `close`, and in a fork, which has none of the
        threads.
        """
        return int(self._library.ingot_run(self._open_state(), step))

    def submit(self, step: StepStruct) -> None:
        """Begins a step in a thread of the kernels; it must not change until `wait` returns."""
        self._library.ingot_submit(self._open_state(), step)

    def wait(self) -> int:
        """Waits for the step that was begun; returns as `run`. Other Python threads run."""
        return int(self._library.ingot_wait(self._open_state()))

    def run_timed(self, step: StepStruct, times: int, watcher: Watcher | None = None) -> int:
        """Runs a step, and writes the time of each kernel, and last that of everything else.

        `times` is the address of int64 nanoseconds. The watcher needs a model of one thread; what
        it raises ends the step, no kernel runs any more, and is raised here.
        """
        raised: list[BaseException] = []

        def asked(kernel: int) -> bool:
            try:
                return not raised and watcher is not None and watcher(kernel)
            except BaseException as error:
                raised.append(error)
                return False

        called = None if watcher is None else _WATCHER(asked)
        code = self._library.ingot_run_timed(self._open_state(), step, times, called)
        if raised:
            raise raised[0]
        return int(code)

    def measure(self, limit: int, threads: int, data: int = 0, nbytes: int = 0) -> float:
        """Measures a limit of this machine, per second; 0 if the threads cannot be started.

        `limit` is its number in `machine_limits.h`.
        """
        return float(self._library.ingot_measure(limit, threads, data, nbytes))

    def sample(self, rows: int, num_rows: int, vocab_size: int) -> None:
        """Draws from the `num_rows` structs at the address `rows`; not while a step runs.

        Other Python threads run meanwhile.
        """
        state = self._open_state()
        if self._sampling is None or self._sampling.vocabulary != vocab_size:
            nbytes = self._library.ingot_sampler_bytes(vocab_size) * self._model.num_threads
            self._memory = Region(nbytes, "the sampler")
            self._sampling = SamplingStruct(memory=self._memory.address, vocabulary=vocab_size)
        self._sampling.rows, self._sampling.num_rows = rows, num_rows
        self._library.ingot_sample(state, self._sampling)

    def _open_state(self) -> int:
        self._process.refuse_fork()
        if self._state is None:
            raise UsageError("this model is closed", hint="Open it again with LLM(path).")
        return self._state

    def close(self) -> None:
        """Joins the threads and unloads the code. A fork has no thread to join."""
        if self._state and self._process.is_current:
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
        for symbol, (result, *arguments) in FUNCTIONS.items():
            function = getattr(library, symbol)
            function.restype, function.argtypes = result, arguments
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
    try:
        fd = _sealed_file(code)
    except OSError as error:
        raise ResourceError(
            f"no memory for {name}: {error.strerror}",
            hint="Free some memory, or raise the limit of open files.",
        ) from error
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
