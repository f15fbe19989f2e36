"""Residence: what sequences hold of a device's memory, whatever their states are."""

from __future__ import annotations

from collections.abc import Sequence as Tokens

from ingot.runtime.executor import Places
from ingot.runtime.initial_record import Copy, InitialRecord
from ingot.runtime.page_table import PageTable
from ingot.runtime.prefix_cache import PrefixPage
from ingot.runtime.slot_table import SlotTable


class Residence:
    """The pages of sequences, and their slots where states keep one record a sequence.

    Pages know every token of a sequence, a slot only what comes of all of them. So where there are
    slots, a sequence goes on from another's tokens only where a snapshot of the record was kept,
    and pages beyond it are computed again. Without slots (`num_slots` is 0) pages are all there is.
    Where no state is paged (`has_pages` is False), they hold nothing, and only name prefixes.
    """

    def __init__(self, pages: PageTable, num_slots: int = 0, *, has_pages: bool = True) -> None:
        self.pages = pages
        self.slots = SlotTable(num_slots)
        self.has_slots, self.has_pages = num_slots > 0, has_pages

    def match(self, token_ids: Tokens[int], limit: int, salt: bytes) -> list[PrefixPage]:
        """The pages of the longest prefix of at most `limit` tokens that a sequence can go on
        from."""
        return self.usable(self.pages.prefix.match(token_ids, limit, salt))

    def usable(self, known: Tokens[PrefixPage]) -> list[PrefixPage]:
        """Those of the pages that begin a sequence which it can go on from."""
        found = [*known]
        while self.has_slots and found and not self.slots.has(found[-1]):
            found.pop()
        return found

    def start(self, sequence_id: int, prefix: Tokens[PrefixPage]) -> int:
        """The tokens that a sequence finds computed: those of `prefix`, or all those before it gave
        up its place, if they are more."""
        own = self.slots.snapshots.get(sequence_id)
        return max(len(prefix) * self.pages.page_size, own.position if own else 0)

    def admit(
        self,
        sequence_id: int,
        num_tokens: int,
        prefix: Tokens[PrefixPage] = (),
        num_spare: int = 0,
        initial: InitialRecord | None = None,
    ) -> bool:
        """Gives a new sequence what its first tokens take, those before its `start` as they were
        computed. Where none were, its record is `initial`, or counts as zeros.

        Does nothing and returns False unless `num_spare` free pages would be left.
        """
        if self.has_slots and not self.slots.num_free:
            return False
        begins_with_prefix = self.start(sequence_id, prefix) == len(prefix) * self.pages.page_size
        if not self.pages.admit(sequence_id, num_tokens, prefix, num_spare):
            return False
        if not begins_with_prefix:
            self.slots.take(sequence_id, sequence_id)
        elif self.has_slots:
            self.slots.release(sequence_id)
            self.slots.take(sequence_id, prefix[-1] if prefix else initial)
        return True

    def has_room(self, num_pages: int, num_sequences: int) -> bool:
        """Returns whether there is room for so many more sequences, which take so many pages."""
        seats = not self.has_slots or self.slots.num_free >= num_sequences
        return seats and self.pages.num_free >= num_pages

    def can_grow(self, sequence_id: int, num_tokens: int) -> bool:
        """Returns whether there is room for the sequence to grow to `num_tokens` tokens."""
        return self.pages.can_grow(sequence_id, num_tokens)

    def can_guess(self, sequence_id: int, num_tokens: int) -> bool:
        """Returns whether there is room for a step that guesses the sequence's tokens up to there.
        With slots one is then reserved for its record."""
        room = self.can_grow(sequence_id, num_tokens)
        return room and (not self.has_slots or self.slots.reserve(sequence_id))

    def grow(self, sequence_id: int, num_tokens: int, initial: InitialRecord | None = None) -> None:
        """Gives the sequence what its first tokens take; `can_grow` must hold. If it has nothing
        yet, it begins with the record `initial`, or with zeros."""
        self.pages.grow(sequence_id, num_tokens)
        if self.has_slots:
            self.slots.take(sequence_id, initial)

    def share(self, owner_id: int, sequence_id: int, num_tokens: int) -> int:
        """Has a new sequence begin with what another's first `num_tokens` tokens have left.

        Returns how many tokens that are. With slots they are those of a record that the other has
        pending, and 0 where there is none; the copy is made when the next step begins.
        """
        if not self.has_slots:
            return self.pages.share(owner_id, sequence_id, num_tokens)
        shared = self.slots.fork(owner_id, sequence_id, num_tokens)
        if shared and self.pages.keeps(owner_id, shared):
            self.pages.share(owner_id, sequence_id, shared)
            return shared
        self.slots.release(sequence_id)
        return 0

    def cut(self, sequence_id: int, num_computed: int, num_tokens: int) -> int:
        """Cuts what a sequence holds of its `num_computed` tokens back to the first `num_tokens`,
        which others are to follow. Returns of how many tokens it holds the states then.

        A record cannot be cut: with slots it is all or nothing.
        """
        if self.has_slots and (num_tokens < num_computed or not num_tokens):
            self.release(sequence_id)
            return 0
        if num_tokens == num_computed:
            return num_tokens  # nothing is written again
        return self.pages.cut(sequence_id, num_tokens)

    def place(self, sequence_id: int, num_tokens: int, num_dropped: int = 0) -> Places | None:
        """Gives a new sequence the places of tokens whose states come from elsewhere; None, and
        nothing, where there is no room."""
        needed = self.pages.num_needed(num_tokens) - num_dropped
        if not self.has_room(needed, 1):
            return None
        page_ids = self.pages.place(sequence_id, num_tokens, num_dropped)
        if self.has_slots:
            self.slots.take(sequence_id)
        return Places(page_ids, self.slots.slot(sequence_id) if self.has_slots else None)

    def places(self, sequence_id: int) -> Places:
        """What a sequence holds."""
        slot = self.slots.slot(sequence_id) if self.has_slots else None
        return Places(self.pages.owned(sequence_id), slot)

    def release(self, sequence_id: int) -> None:
        """Takes what a sequence holds; a sequence that holds nothing is fine."""
        self.pages.release(sequence_id)
        self.slots.release(sequence_id)

    def set_aside(self, sequence_id: int, num_computed: int) -> None:
        """Takes a sequence's place; what its first tokens have left stays while there is room.

        Of a sequence with pages that is what the prefix cache knows. Without them it is its record,
        wherever it is.
        """
        if self.has_slots and not self.has_pages and num_computed:
            self.slots.set_aside(sequence_id, num_computed, self.pages.last_known(sequence_id))
            self.pages.release(sequence_id)
        else:
            self.release(sequence_id)

    def border(self, num_tokens: int) -> int:
        """The end of the last whole page of so many tokens. What a step that ends there leaves can
        be found."""
        return num_tokens // self.pages.page_size * self.pages.page_size

    def fork_point(self, num_tokens: int) -> int:
        """Where those go on that fork after so many tokens: there, or at the last border before the
        last of them, since a page that is not full cannot be shared."""
        return self.border(num_tokens - 1) if self.has_pages else num_tokens

    def snapshot(self, sequence_id: int, num_tokens: int, *, stays: bool = True) -> None:
        """Keeps what a sequence has of its first tokens, which the step that is given now ends;
        see `SlotTable.snapshot`."""
        self.slots.snapshot(sequence_id, num_tokens, stays=stays)

    def publish(
        self, sequence_id: int, token_ids: Tokens[int], num_computed: int, salt: bytes
    ) -> None:
        """Makes the sequence's full pages known, and a snapshot at the end of the last of them."""
        last = self.pages.publish(sequence_id, token_ids, num_computed, salt)
        self.slots.publish(sequence_id, self.border(num_computed), last)

    def forget_prefixes(self) -> None:
        """Empties the prefix cache."""
        self.pages.forget_prefixes()
        self.slots.clear()

    def take_copies(self) -> list[Copy]:
        """The copies of records that the next step begins with, once."""
        copies, self.slots.copies = self.slots.copies, []
        return copies

    def check(self) -> None:
        """Raises InternalError for anything that is lost or has two owners."""
        self.pages.check()
        self.slots.check()
