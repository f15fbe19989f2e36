"""Routing of a request to a replica: to the one with its prefix, unless that is overloaded."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from msgspec import Struct

BLOCK_TOKENS = 32
MAX_BLOCKS = 256  # of a prompt that are looked at


def prefix_blocks(token_ids: Sequence[int], salt: str = "") -> list[int]:
    """A number for each block of a prompt, which stands for all tokens up to its end."""
    digest = hashlib.blake2b(salt.encode(), digest_size=8)
    found = []
    for start in range(0, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS)[:MAX_BLOCKS]:
        digest.update(array("q", token_ids[start : start + BLOCK_TOKENS]).tobytes())
        found.append(int.from_bytes(digest.copy().digest(), "little"))
    return found


class Balance(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bound on a replica's load beyond which its cache does not attract requests.

    It has, where it runs more than `more` requests over the idlest one, and more than `times` as
    many as that.
    """

    more: int = 4
    times: float = 1.5

    def allows(self, load: int, least: int) -> bool:
        """Returns whether a replica of that load may be preferred to one of the least load."""
        return load - least <= self.more or load <= least * self.times


class PrefixTable:
    """Table of the prefixes that each replica was given lately. It keeps the newest `capacity`
    blocks."""

    def __init__(self, balance: Balance, capacity: int = 200_000) -> None:
        self._balance = balance
        self._capacity = capacity
        self._holders: OrderedDict[int, str] = OrderedDict()

    def order(self, blocks: Sequence[int], loads: Mapping[str, int]) -> list[str]:
        """The replicas, the best first.

        That is the one that has the longest prefix if its load allows it, then the idlest. Among
        those that are equally idle the first block decides, so that routers that know nothing of
        one another agree.
        """
        least = min(loads.values(), default=0)
        found = sorted(loads, key=lambda name: (loads[name], _draw(blocks, name)))
        holder = self._longest(blocks, loads)
        if holder is not None and self._balance.allows(loads[holder], least):
            found.remove(holder)
            found.insert(0, holder)
        return found

    def note(self, blocks: Sequence[int], replica: str) -> None:
        """A request with these blocks went to a replica."""
        for block in blocks:
            self._holders[block] = replica
            self._holders.move_to_end(block)
        while len(self._holders) > self._capacity:
            self._holders.popitem(last=False)

    def _longest(self, blocks: Sequence[int], loads: Mapping[str, int]) -> str | None:
        for block in reversed(blocks):
            holder = self._holders.get(block)
            if holder in loads:  # and has not gone
                return holder
        return None


def _draw(blocks: Sequence[int], name: str) -> bytes:
    """A number that a replica draws for a prefix; the same wherever it is drawn."""
    first = blocks[0] if blocks else 0
    return hashlib.blake2b(f"{first}/{name}".encode(), digest_size=8).digest()
