"""Reads a cubin, which is an ELF file with one kernel, without tools of NVIDIA's, and holds it to
what it was compiled for."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ingot.artifact.architectures import Architecture
from ingot.artifact.launches import Binary, KernelSpec
from ingot.errors import ToolchainError
from ingot.targets.cuda.compiled import Compiled

POINTER_BYTES = 8
SIZES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "fp32": 4, "fp64": 8}
SCRATCH_POINTERS = 2  # which Triton adds to the parameters of every kernel
WARP = 32


def described(
    spec: KernelSpec, file: str, compiled: Compiled, architecture: Architecture
) -> Binary:
    """Describes a built kernel for the artifact.

    Raises:
        ToolchainError: the binary takes other arguments than the spec says, expects scratch memory,
            needs more shared memory than the architecture has, or cannot be read.
    """
    cubin = read_cubin(compiled.cubin)
    for fault in _faults(spec, compiled, cubin, architecture):
        raise ToolchainError(
            f"kernel {spec.function}, compiled for sm_{architecture.number}, {fault}",
            hint=f"Its constants: {dict(spec.constants)}. Please report it.",
        )
    return Binary(
        file=file,
        entry=cubin.entry,
        parameters=cubin.parameters,
        shared_bytes=compiled.shared_bytes,
        registers=cubin.registers,
        spilled_bytes=cubin.local_bytes,
    )


def _faults(
    spec: KernelSpec, compiled: Compiled, cubin: Cubin, architecture: Architecture
) -> Iterator[str]:
    if cubin.architecture != architecture.number:
        yield f"is for sm_{cubin.architecture}"
    sizes = [size for _, size in cubin.parameters]
    expected = [*(_size(kind) for _, kind in spec.arguments), *[POINTER_BYTES] * SCRATCH_POINTERS]
    if sizes != expected:
        yield f"has parameters of {sizes} bytes, not of {expected}"
    if compiled.scratch_bytes:
        yield f"expects {compiled.scratch_bytes} bytes of scratch memory, for which nothing cares"
    if compiled.programs != 1:
        yield f"is launched in clusters of {compiled.programs}, for which nothing cares"
    if cubin.threads != spec.num_warps * WARP:
        yield f"has {cubin.threads} threads, not {spec.num_warps * WARP}"
    most = architecture.most_shared_bytes
    if compiled.shared_bytes > most:
        yield f"needs {compiled.shared_bytes} bytes of shared memory, of which there are {most}"


def _size(kind: str) -> int | None:
    """Bytes of an argument of a type of Triton's; None for one that nothing passes."""
    return POINTER_BYTES if kind.startswith("*") else SIZES.get(kind)


_INFO, _SHARED = ".nv.info", ".nv.shared."
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NO_BITS = 8  # the type of a section that has a size and no bytes
_SIZED = 4  # the form of an attribute that is followed by its value
# Attributes of a kernel, and those of all functions, which name one and have a number for it.
_THREADS, _PARAMETER = 0x10, 0x17
_FRAME, _REGISTERS = 0x11, 0x2F
# Where the flags of the header have the architecture, by the version of NVIDIA's interface.
_SHIFTS = {0x33: 0, 0x41: 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """Properties of a kernel that its binary states.

    Attributes:
        entry: the name of the kernel.
        architecture: such as 90.
        parameters: (offset, size) in bytes of each, in order.
        threads: of a program.
        registers: of a thread.
        static_shared_bytes: shared memory that the binary asks for by itself: none, or what the
            system reserves. Triton's kernels have theirs beside it: a launch asks for it.
        local_bytes: of a thread, where what does not fit its registers lies.
    """

    entry: str
    architecture: int
    parameters: tuple[tuple[int, int], ...]
    threads: int
    registers: int
    static_shared_bytes: int
    local_bytes: int


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    size: int
    data: bytes


def read_cubin(data: bytes) -> Cubin:
    """Reads a cubin. Raises ToolchainError if it is damaged or has not exactly one kernel."""
    try:
        sections = {section.name: section for section in _sections(data)}
        infos = [name for name in sections if name.startswith(f"{_INFO}.")]
        if len(infos) != 1:
            raise _damaged(f"{len(infos)} kernels")
        entry = infos[0].removeprefix(f"{_INFO}.")
        own, common = (list(_attributes(sections[name].data)) for name in (infos[0], _INFO))
        shared = sections.get(_SHARED + entry)
        return Cubin(
            entry=entry,
            architecture=_architecture(data),
            parameters=_parameters([value for code, value in own if code == _PARAMETER]),
            threads=_threads([value for code, value in own if code == _THREADS]),
            registers=_most(common, _REGISTERS),
            static_shared_bytes=shared.size if shared else 0,
            local_bytes=_most(common, _FRAME),
        )
    except KeyError as error:
        raise _damaged(f"no section {error}") from error
    except (struct.error, UnicodeError) as error:
        raise _damaged(str(error)) from error


def _sections(data: bytes) -> Iterator[_Section]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise _damaged("no ELF file of 64 bits")
    (first,) = struct.unpack_from("<Q", data, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", data, 0x3A)
    if size != _SECTION.size or of_names >= count:
        raise _damaged("its table of sections")
    headers = [_SECTION.unpack(_part(data, first + i * size, size)) for i in range(count)]
    names = _part(data, headers[of_names][4], headers[of_names][5])
    for name, kind, _, _, offset, length, *_ in headers:
        text = names[name : names.find(b"\0", name)].decode("ascii")
        stored = b"" if kind == _NO_BITS else _part(data, offset, length)
        yield _Section(text, length, stored)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The code of each attribute, and its value if it is one with a size."""
    at = 0
    while at < len(data):
        form, code, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _SIZED:
            yield code, _part(data, at, size)
            at += size
        else:
            yield code, b""


def _parameters(values: list[bytes]) -> tuple[tuple[int, int], ...]:
    found = {}
    for value in values:
        _, ordinal, offset, flags = struct.unpack("<IHHI", value)
        found[ordinal] = (offset, flags >> 18)
    if sorted(found) != list(range(len(values))):
        raise _damaged("parameters are missing")
    return tuple(found[ordinal] for ordinal in range(len(values)))


def _most(attributes: list[tuple[int, bytes]], code: int) -> int:
    """The largest number that an attribute has for a function."""
    numbers = [struct.unpack("<II", value)[1] for found, value in attributes if found == code]
    if not numbers:
        raise _damaged(f"no attribute {code:#x}")
    return int(max(numbers))


def _threads(values: list[bytes]) -> int:
    if len(values) != 1:
        raise _damaged("it does not say its threads")
    x, y, z = struct.unpack("<III", values[0])
    return int(x * y * z)


def _architecture(data: bytes) -> int:
    shift = _SHIFTS.get(data[7])
    if shift is None:
        raise _damaged(f"an unknown interface, {data[7]:#x}")
    (flags,) = struct.unpack_from("<I", data, 0x30)
    return int(flags >> shift & 0xFF)


def _part(data: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise _damaged("it is truncated")
    return data[offset : offset + size]


def _damaged(reason: str) -> ToolchainError:
    return ToolchainError(
        f"not a cubin that can be read: {reason}",
        hint="Build it again; if that does not help, report it with what `ingot doctor` prints.",
    )
