"""Prompt cache: prefixes of prompts in a folder, which outlive the process that computed them."""

from __future__ import annotations

import hashlib
import logging
import os
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import msgspec
import numpy as np
import xxhash

from ingot.artifact.reader import Artifact
from ingot.errors import IngotError, StateFileError, UsageError
from ingot.files import as_path, unwritable
from ingot.runtime.arrays import Int32
from ingot.runtime.metrics import CacheCounters
from ingot.runtime.pool_size import widest_window
from ingot.runtime.sessions.state_file import Belongs, Header, StateFile, salt_of

DEFAULT_BYTES = 10 << 30
MOST_WAITING = 64  # prefixes that are to be written
SHARE = 10  # while requests run, writing takes one part in so many of the time

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """A file, and the tokens whose states it has."""

    path: Path
    tokens: Int32
    salt: bytes
    nbytes: int
    keys: tuple[int, ...]


class Found(NamedTuple):
    """A file, and how many of a prompt's first tokens have their states in it."""

    kept: Kept
    num_tokens: int


class Wanted(NamedTuple):
    """A prefix that is to be written."""

    token_ids: list[int]
    salt: bytes


class PromptCache:
    """Files of prefixes, found by their tokens; those used longest ago go first.

    Each artifact has a folder of its own in `folder`, so that several can share that. What is
    written there by others is found when the cache is opened again. A prefix that another begins
    with is not kept twice, unless states have one record a sequence (`is_cut` is False): then only
    the end of a prefix can be gone on from.

    Raises UsageError for a folder that cannot be used.
    """

    def __init__(self, folder: Path, max_bytes: int, belongs: Belongs, *, is_cut: bool) -> None:
        digest = hashlib.blake2b(msgspec.json.encode(belongs), digest_size=8).hexdigest()
        self._folder = folder / digest
        self._max_bytes, self._size, self._is_cut = max_bytes, belongs.page_size, is_cut
        self.belongs = belongs
        self._by_path: dict[Path, Kept] = {}  # used longest ago first
        self._by_key: dict[int, list[Kept]] = {}
        self._waiting: deque[Wanted] = deque(maxlen=MOST_WAITING)
        self._next_write = 0.0
        self.nbytes = self._num_queries = self._num_hits = self._num_evictions = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = sorted(self._folder.glob("*.state"), key=lambda path: path.stat().st_mtime_ns)
        except OSError as error:
            raise UsageError(
                f"{str(folder)!r} cannot hold a prompt cache: {error.strerror}",
                hint="Name another folder.",
            ) from error
        for path in found:
            self._open(path)
        self._evict()

    @classmethod
    def of(cls, artifact: Artifact, folder: str, max_bytes: int | None) -> PromptCache:
        """That of an artifact. Raises UsageError also where no state is kept for a whole prefix."""
        plan = artifact.plan_of(artifact.target)
        if widest_window(plan):
            raise UsageError(
                "this model keeps no whole prefixes: all of its layers look back at a window",
                hint="Leave out prompt_cache.",
            )
        belongs, most = Belongs.to(artifact), max_bytes or DEFAULT_BYTES
        return cls(as_path(folder), most, belongs, is_cut=not plan.slot_bytes)

    def find(self, token_ids: Sequence[int], limit: int, salt: bytes) -> Found | None:
        """The file that has the most of a prompt, at most its first `limit` tokens."""
        salted, known = salt_of(salt), None
        given = np.array(token_ids[:limit], np.int32)
        for number, key in enumerate(self._keys(token_ids[:limit], salted), start=1):
            end = number * self._size
            for kept in self._by_key.get(key, ()):
                if kept.salt == salted and np.array_equal(kept.tokens[:end], given[:end]):
                    known = Found(kept, end)
        return known

    def use(self, kept: Kept) -> StateFile | None:
        """Opens a file that was found; None, and it is forgotten, where it is damaged or gone."""
        self._num_queries += 1
        try:
            file = StateFile(kept.path)
        except StateFileError as error:
            self.refuse(kept, error)
            return None
        self._by_path[kept.path] = self._by_path.pop(kept.path)
        with suppress(OSError):
            os.utime(kept.path)
        return file

    def hit(self) -> None:
        """Notes that a file has served a prompt."""
        self._num_hits += 1

    def refuse(self, kept: Kept, error: StateFileError) -> None:
        """Deletes a file that is damaged: its prompt is computed again."""
        _log.warning("a file of the prompt cache is deleted: %s", error.found)
        self._delete(kept)

    def want(self, token_ids: list[int], salt: bytes) -> None:
        """Notes a prefix of whole pages that was computed."""
        if token_ids and not self.has(token_ids, salt):
            self._waiting.append(Wanted(token_ids, salt))

    def due(self, *, now: bool) -> Wanted | None:
        """A prefix that is to be written: at once, or while other work waits."""
        if not now and perf_counter() < self._next_write:
            return None
        while self._waiting:
            wanted = self._waiting.popleft()
            if not self.has(*wanted):
                return wanted
        return None

    def put(self, wanted: Wanted, header: Header, write: Callable[[Path], int]) -> None:
        """Has a prefix written, and others deleted that it takes the room of."""
        tokens = np.array(wanted.token_ids, np.int32)
        name = xxhash.xxh3_128_hexdigest(header.salt + tokens.tobytes())
        if header.state_bytes > self._max_bytes:
            return
        began, path = perf_counter(), self._folder / f"{name}.state"
        shorter = self.find(wanted.token_ids, len(tokens), wanted.salt)
        try:
            nbytes = write(path)
        except IngotError as error:
            _log.warning("a prefix was not kept: %s", error.found)
        else:
            self._add(path, tokens, header.salt, nbytes)
            if self._is_cut and shorter and shorter.num_tokens == len(shorter.kept.tokens):
                self._delete(shorter.kept)
            self._evict()
        ended = perf_counter()
        self._next_write = ended + (SHARE - 1) * (ended - began)

    def counters(self) -> CacheCounters:
        return CacheCounters(
            num_entries=len(self._by_path),
            num_queries=self._num_queries,
            num_hits=self._num_hits,
            num_evictions=self._num_evictions,
            nbytes=self.nbytes,
        )

    def has(self, token_ids: list[int], salt: bytes) -> bool:
        """Returns whether a file has the states of all these tokens."""
        found = self.find(token_ids, len(token_ids), salt)
        return found is not None and found.num_tokens == len(token_ids)

    def _keys(self, token_ids: Sequence[int], salt: bytes) -> Iterator[int]:
        """A hash of the tokens up to each border of a page."""
        key, size = xxhash.xxh3_64_intdigest(salt), self._size
        for end in range(size, len(token_ids) + 1, size):
            key = xxhash.xxh3_64_intdigest(array("i", token_ids[end - size : end]).tobytes(), key)
            yield key

    def _open(self, path: Path) -> None:
        try:
            with StateFile(path) as file:
                self.belongs.check(file.header.belongs, path)
                header = file.header
            self._add(path, header.token_ids.copy(), header.salt, path.stat().st_size)
        except (StateFileError, OSError) as error:
            _log.warning("a file of the prompt cache is deleted: %s", error)
            with suppress(OSError):
                path.unlink()

    def _add(self, path: Path, tokens: Int32, salt: bytes, nbytes: int) -> None:
        keys = tuple(self._keys(tokens.tolist(), salt))
        kept = Kept(path, tokens, salt, nbytes, keys if self._is_cut else keys[-1:])
        self._by_path[path] = kept
        self.nbytes += nbytes
        for key in kept.keys:
            self._by_key.setdefault(key, []).append(kept)

    def _evict(self) -> None:
        while self.nbytes > self._max_bytes and self._by_path:
            self._delete(next(iter(self._by_path.values())))
            self._num_evictions += 1

    def _delete(self, kept: Kept) -> None:
        if self._by_path.pop(kept.path, None) is None:
            return
        self.nbytes -= kept.nbytes
        for key in kept.keys:
            self._by_key[key].remove(kept)
            if not self._by_key[key]:
                del self._by_key[key]
        try:
            kept.path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s", unwritable(kept.path, error).found)
