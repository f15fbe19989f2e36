"""Prefix cache: maps tokens to their pages, so that equal prefixes are computed once."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

import xxhash

from ingot.runtime.metrics import CacheCounters, Tally


@dataclass(slots=True, eq=False)
class PrefixPage:
    """A full page: its `tokens` after the prefix that `parent` and its parents hold.

    It is `known` as long as it can be found.
    """

    key: int
    page_id: int
    parent: PrefixPage | None
    tokens: bytes
    salt: bytes
    known: bool = True


class PrefixCache:
    """Finds pages by a hash chained over (parent, tokens, salt).

    A hash only says where to look. A page is found if its tokens, its salt and its parent are
    equal; the parent must be the same entry, so all tokens before it are equal as well. Of two
    entries with the same hash the later one stays.
    """

    def __init__(self, page_size: int, *, hash_bits: int = 64) -> None:
        self._page_size = page_size
        self._mask = (1 << hash_bits) - 1
        self._entries: dict[int, PrefixPage] = {}
        self._by_page: dict[int, PrefixPage] = {}
        self._tally = Tally(int)

    def __contains__(self, page_id: int) -> bool:
        return page_id in self._by_page

    def match(self, token_ids: Tokens[int], limit: int, salt: bytes) -> list[PrefixPage]:
        """Entries of the longest known prefix of at most `limit` tokens."""
        entries: list[PrefixPage] = []
        parent: PrefixPage | None = None
        size = self._page_size
        for end in range(size, limit + 1, size):
            tokens = array("i", token_ids[end - size : end]).tobytes()
            entry = self._entries.get(self._key(parent, tokens, salt))
            if entry is None or not _equal(entry, parent, tokens, salt):
                break
            entries.append(entry)
            parent = entry
        return entries

    def publish(
        self, parent: PrefixPage | None, token_ids: Tokens[int], salt: bytes, page_id: int
    ) -> PrefixPage:
        """Makes a page known, unless an equal one is; returns the entry of the tokens."""
        tokens = array("i", token_ids).tobytes()
        key = self._key(parent, tokens, salt)
        known = self._entries.get(key)
        if known is not None:
            if _equal(known, parent, tokens, salt):
                return known
            known.known = False
            del self._by_page[known.page_id]
        entry = PrefixPage(key, page_id, parent, tokens, salt)
        self._entries[key] = self._by_page[page_id] = entry
        return entry

    def evict(self, page_id: int) -> None:
        """Forgets what a page holds, if it is known."""
        entry = self._by_page.pop(page_id, None)
        if entry is not None:
            entry.known = False
            del self._entries[entry.key]
            self._tally["num_evictions"] += 1

    def clear(self) -> None:
        for entry in self._entries.values():
            entry.known = False
        self._entries.clear()
        self._by_page.clear()

    def count(self, num_queries: int, num_hits: int) -> None:
        """Notes the tokens of a prompt, and how many of them were found."""
        self._tally["num_queries"] += num_queries
        self._tally["num_hits"] += num_hits

    def counters(self) -> CacheCounters:
        return CacheCounters(**self._tally, num_entries=len(self._entries))

    def _key(self, parent: PrefixPage | None, tokens: bytes, salt: bytes) -> int:
        # The salt enters at the root and is carried on by the parents' keys.
        seed = xxhash.xxh3_64_intdigest(salt) if parent is None else parent.key
        return xxhash.xxh3_64_intdigest(tokens, seed) & self._mask


def _equal(entry: PrefixPage, parent: PrefixPage | None, tokens: bytes, salt: bytes) -> bool:
    return entry.parent is parent and entry.tokens == tokens and entry.salt == salt
