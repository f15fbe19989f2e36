"""Slots of states that keep one record a sequence: which are free, and whose records they hold."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ingot.errors import InternalError
from ingot.runtime.prefix_cache import PrefixPage

Copy = tuple[int, int]  # from a slot to a slot


@dataclass(slots=True)
class _Snapshot:
    """A copy of a record as it was after `position` tokens, which nobody can find yet."""

    position: int
    slot: int


class SlotTable:
    """Hands out slots to sequences, and keeps snapshots in those that no sequence needs.

    A snapshot is a copy of a sequence's record at the end of a page. It belongs to the sequence
    until that page is known to the prefix cache; then whoever begins with the same tokens goes on
    from it. Known snapshots are given up when no other slot is free: first those of pages that are
    known no more, then the one that was used longest ago.

    Nothing is copied here. `copies` lists what the device copies, in this order, before the step
    that it is given next: by then every step before has been given, and has left its records.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.copies: list[Copy] = []
        self._blank = list(range(num_slots - 1, -1, -1))
        self._held: dict[int, int] = {}
        self._pending: dict[int, _Snapshot] = {}
        self._known: OrderedDict[PrefixPage, int] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Slots that a sequence can have, those of known snapshots included."""
        return len(self._blank) + len(self._known)

    def slot(self, sequence_id: int) -> int:
        """The slot of a sequence."""
        return self._held[sequence_id]

    def take(self, sequence_id: int, after: PrefixPage | None = None) -> None:
        """Gives a sequence a slot, with the record as it was after a page whose snapshot is known.

        Without such a page the sequence begins, and whatever the slot holds counts as zeros. There
        must be a free slot, and a sequence that has one keeps it.
        """
        if sequence_id in self._held:
            return
        found = None if after is None else self._known.pop(after)
        if found is None or not self.num_free:  # the only one left is moved, not copied
            self._held[sequence_id] = self._free_slot() if found is None else found
            return
        slot = self._held[sequence_id] = self._free_slot()
        self.copies.append((found, slot))
        assert after is not None
        self._known[after] = found

    def release(self, sequence_id: int) -> None:
        """Takes the sequence's slot, and what nobody can find; a sequence without any is fine."""
        self._drop_pending(sequence_id)
        slot = self._held.pop(sequence_id, None)
        if slot is not None:
            self._blank.append(slot)

    def snapshot(self, sequence_id: int, position: int) -> None:
        """Has the sequence's record copied as the step that is given now leaves it, after so many
        tokens; not where all slots are sequences'."""
        self._drop_pending(sequence_id)
        if self.num_free:
            slot = self._free_slot()
            self.copies.append((self._held[sequence_id], slot))
            self._pending[sequence_id] = _Snapshot(position, slot)

    def publish(self, sequence_id: int, position: int, page: PrefixPage | None) -> None:
        """Makes the sequence's snapshot at a position known, as what comes after that page."""
        pending = self._pending.get(sequence_id)
        if pending is None or pending.position != position:
            return
        if page is None or page in self._known:
            self._drop_pending(sequence_id)
        else:
            self._known[page] = self._pending.pop(sequence_id).slot

    def has(self, page: PrefixPage) -> bool:
        """Returns whether there is a snapshot after that page."""
        return page in self._known

    def snapshot_after(self, page: PrefixPage) -> int | None:
        """The slot of the snapshot after that page; None where there is none."""
        return self._known.get(page)

    def clear(self) -> None:
        """Forgets all snapshots."""
        for sequence_id in [*self._pending]:
            self._drop_pending(sequence_id)
        self._blank.extend(self._known.values())
        self._known.clear()

    def check(self) -> None:
        """Raises InternalError unless every slot has one use."""
        pending = [each.slot for each in self._pending.values()]
        used = [*self._blank, *self._held.values(), *pending, *self._known.values()]
        if sorted(used) != list(range(self.num_slots)):
            raise InternalError(f"slots that are lost or used twice: {sorted(used)}")

    def _drop_pending(self, sequence_id: int) -> None:
        pending = self._pending.pop(sequence_id, None)
        if pending is not None:
            self._blank.append(pending.slot)

    def _free_slot(self) -> int:
        if self._blank:
            return self._blank.pop()
        # A snapshot whose page was evicted serves nobody, so it goes first.
        lost = next((page for page in self._known if not page.known), None)
        return self._known.popitem(last=False)[1] if lost is None else self._known.pop(lost)
