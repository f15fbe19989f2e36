"""State files: the states of a sequence's first tokens as bytes, with what they belong to.

    magic, version          8 bytes, uint32
    header                  its bytes (uint32), its XXH3 (uint64), itself as MessagePack
    states                  array by array: pages in order, or the record of the slot
    initial record          of the slot before the first token, if it was not zeros
    logits                  float32 of the token after the last, if they are known
    checksum                XXH3 (uint64) of all bytes before

Numbers are little-endian. The checksum finds damage; it does not say who wrote a file.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from msgspec import Struct

from ingot.artifact.reader import Artifact, weights_name
from ingot.errors import StateFileError
from ingot.files import open_regular, unwritable
from ingot.runtime.arrays import Float32, Int32
from ingot.runtime.initial_record import InitialRecord

MAGIC = b"INGOTST\n"
VERSION = 1
MOST_HEADER_BYTES = 1 << 28
_PREFIX = struct.Struct("<8sIIQ")
_CHECKSUM = struct.Struct("<Q")
_SEEN_BYTES = 1 << 20  # of a file that is only checked, how many are read at once


class Belongs(Struct, frozen=True, kw_only=True):
    """What states belong to. All of it must be equal where they are read: else bits would differ,
    or mean something else.

    `plan`, `kernels` and `weights` are hashes of these files; `arrays` has the kind of each array
    of the states, and the bytes of one page or slot.
    """

    dtype: str
    quantization: str
    target: str
    weights: str
    plan: str
    kernels: str
    page_size: int
    arrays: list[tuple[str, str, int]]

    @classmethod
    def to(cls, artifact: Artifact) -> Belongs:
        """For the target of this host."""
        entry, manifest = artifact.target, artifact.manifest
        plan, files = artifact.plan_of(entry), manifest.files
        names = [
            name
            for state in plan.spec.states
            for name in (state.name, *[f"{state.name}.scales"] * state.format.is_scaled)
        ]
        arrays = zip(names, plan.state_arrays(), strict=True)
        return cls(
            dtype=manifest.numerics.dtype,
            quantization=manifest.numerics.quantization,
            target=entry.name,
            weights=files[weights_name(entry.layout)].sha256,
            plan=files[entry.main.plan].sha256,
            kernels=files[entry.main.kernels].sha256,
            page_size=plan.limits.page_size,
            arrays=[(name, array.kind, array.nbytes) for name, array in arrays],
        )

    def check(self, found: Belongs, file: Path) -> None:
        """Raises StateFileError that names what differs."""
        for name in self.__struct_fields__:
            ours, theirs = getattr(self, name), getattr(found, name)
            if ours != theirs:
                shown = "" if name == "arrays" else f": {theirs!s:.64}, here {ours!s:.64}"
                raise StateFileError(
                    f"{file} is of another artifact: its {name} differ{shown}",
                    hint="Load it where the artifact is that it was saved with.",
                )


class Header(Struct, frozen=True, kw_only=True):
    """What a state file says of its bytes.

    `tokens` are int32; the states are those of the first `num_held`, without pages that lie behind
    the window, `num_dropped`. The last `num_drawn` were drawn since something was fed. `seed` and
    `key` name the sequence to the sampler's generator. `salt` is a hash: only who has the salt
    finds a prefix. `initial` is the digest of the record that the sequence begins with; empty:
    zeros. `num_logits` is 0 where there are none.
    """

    belongs: Belongs
    tokens: bytes
    num_held: int
    num_dropped: int = 0
    num_drawn: int = 0
    seed: int = 0
    key: bytes = b""
    salt: bytes = b""
    initial: bytes = b""
    num_logits: int = 0

    @property
    def token_ids(self) -> Int32:
        return np.frombuffer(self.tokens, "<i4")

    @property
    def num_pages(self) -> int:
        return -(-self.num_held // self.belongs.page_size) - self.num_dropped

    @property
    def state_bytes(self) -> int:
        """Bytes of the states."""
        counts = {"paged": self.num_pages, "slotted": int(self.num_held > 0)}
        return sum(counts[kind] * nbytes for _, kind, nbytes in self.belongs.arrays)

    @property
    def initial_bytes(self) -> int:
        """Bytes of the record that the sequence begins with."""
        slot_bytes = sum(nbytes for _, kind, nbytes in self.belongs.arrays if kind == "slotted")
        return slot_bytes if self.initial else 0


def salt_of(salt: bytes) -> bytes:
    """What a file says of a salt."""
    return hashlib.blake2b(salt, digest_size=16).digest() if salt else b""


def write_states(
    path: Path,
    header: Header,
    give: Callable[[Callable[[memoryview], object]], None],
    logits: Float32 | None = None,
) -> int:
    """Puts a file in place in one step, and returns its bytes.

    `give` is called with what writes a piece of the states. Nothing waits for the disk: of a file
    that a crash has cut, the checksum tells. Raises UsageError where it cannot be written, and
    ResourceError where the disk is full.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                nbytes = _write(file, header, give, logits)
            os.replace(beside, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(beside)
    except OSError as error:
        raise unwritable(path, error) from error
    return nbytes


def _write(
    file: Any,
    header: Header,
    give: Callable[[Callable[[memoryview], object]], None],
    logits: Float32 | None,
) -> int:
    seen, written = xxhash.xxh3_64(), 0

    def put(piece: memoryview | bytes) -> None:
        nonlocal written
        seen.update(piece)
        left = memoryview(piece)
        while left:
            done = file.write(left)
            left, written = left[done:], written + done

    packed = msgspec.msgpack.encode(header)
    put(_PREFIX.pack(MAGIC, VERSION, len(packed), xxhash.xxh3_64_intdigest(packed)))
    put(packed)
    give(put)
    if logits is not None:
        put(np.ascontiguousarray(logits, "<f4").data.cast("B"))
    put(_CHECKSUM.pack(seen.intdigest()))
    return written


class StateFile:
    """A state file that is open. A context manager.

    Raises StateFileError for what is none, of another version, or cut or changed in the header.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.initial: InitialRecord | None = None
        try:
            self._fd = open_regular(path)
        except OSError as error:
            raise StateFileError(f"{path} cannot be read: {error.strerror}") from error
        try:
            self.header = self._read_header()
        except BaseException:
            self.close()
            raise

    def fill(self, piece: memoryview) -> None:
        """Reads the next bytes of the states into a piece. Raises StateFileError."""
        left = piece
        while left:
            try:
                done = os.readv(self._fd, [left])
            except OSError as error:
                raise StateFileError(f"{self.path} cannot be read: {error.strerror}") from error
            if not done:
                raise self._damaged("it is cut")
            left = left[done:]
        self._seen.update(piece)

    def first(self, num_pages: int) -> Callable[[memoryview], None]:
        """What fills the pieces of the first pages, and checks those of the others."""
        skipped = self.header.num_pages - num_pages
        if not skipped:
            return self.fill
        left = [
            [num_pages * nbytes, skipped * nbytes]
            for _, kind, nbytes in self.header.belongs.arrays
            if kind == "paged"
        ]

        def fill(piece: memoryview) -> None:
            self.fill(piece)
            left[0][0] -= len(piece)
            if not left[0][0]:
                self._skip(left.pop(0)[1])

        return fill

    def finish(self) -> Float32 | None:
        """The logits, once all states were read; sets `initial`. Raises StateFileError for a wrong
        checksum."""
        logits = None
        if self.header.initial:
            data = bytearray(self.header.initial_bytes)
            self.fill(memoryview(data))
            self.initial = InitialRecord(bytes(data))
        if self.header.num_logits:
            logits = np.empty(self.header.num_logits, "<f4")
            self.fill(logits.data.cast("B"))
        found = self._seen.intdigest()
        last = os.read(self._fd, _CHECKSUM.size + 1)
        if len(last) != _CHECKSUM.size or found != _CHECKSUM.unpack(last)[0]:
            raise self._damaged("its checksum is wrong")
        return logits

    def verify(self) -> Float32 | None:
        """Reads all states, and keeps none; see `finish`."""
        self._skip(self.header.state_bytes)
        return self.finish()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> StateFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _skip(self, nbytes: int) -> None:
        seen = memoryview(bytearray(min(nbytes, _SEEN_BYTES)))
        while nbytes:
            piece = seen[: min(nbytes, _SEEN_BYTES)]
            self.fill(piece)
            nbytes -= len(piece)

    def _read_header(self) -> Header:
        prefix = os.read(self._fd, _PREFIX.size)
        if not prefix.startswith(MAGIC):
            raise StateFileError(
                f"{self.path} is no state file", hint="Session.save writes one, and a prompt cache."
            )
        if len(prefix) < _PREFIX.size:
            raise self._damaged("it is cut")
        _, version, nbytes, digest = _PREFIX.unpack(prefix)
        if version != VERSION:
            raise StateFileError(
                f"{self.path} has version {version} of the format",
                hint=f"This version of ingot reads version {VERSION}.",
            )
        size = os.fstat(self._fd).st_size
        if nbytes > min(size, MOST_HEADER_BYTES):
            raise self._damaged("it is cut")
        packed = os.read(self._fd, nbytes)
        if xxhash.xxh3_64_intdigest(packed) != digest:
            raise self._damaged("its header is cut or changed")
        try:
            header = msgspec.msgpack.decode(packed, type=Header)
        except msgspec.MsgspecError as error:
            raise self._damaged(f"its header: {error}") from error
        expected = _PREFIX.size + nbytes + header.state_bytes + header.initial_bytes
        expected += 4 * header.num_logits
        if size != expected + _CHECKSUM.size:
            raise self._damaged(f"it has {size} bytes, not {expected + _CHECKSUM.size}")
        self._seen = xxhash.xxh3_64(prefix + packed)
        return header

    def _damaged(self, why: str) -> StateFileError:
        return StateFileError(
            f"{self.path} is damaged: {why}", hint="Delete it, and save the states again."
        )
