"""Slots of states that keep one record a sequence: which are free, and whose records they hold."""

from __future__ import annotations

from ingot.errors import InternalError
from ingot.runtime.initial_record import Copy, InitialRecord
from ingot.runtime.prefix_cache import PrefixPage
from ingot.runtime.snapshots import Name, Snapshot, Snapshots


class SlotTable:
    """Hands out slots to sequences, and keeps snapshots in those that no sequence needs.

    A snapshot is a copy of a sequence's record after some of its tokens. It is pending, and the
    sequence's own, until the page that ends there is known to the prefix cache; then whoever begins
    with the same tokens goes on from it. Of those that a sequence leaves on its way only the newest
    is kept. A sequence that gives up its place leaves its record itself as a snapshot, for which
    only it asks.

    Before a step that guesses, the record is copied to a spare slot. It is put back if a guess was
    wrong: a record cannot forget what it has read.

    Nothing is copied here. `copies` lists what the device copies, in this order, before the step
    that it is given next: by then every step before has been given, and has left its records.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.copies: list[Copy] = []
        self.snapshots = Snapshots()
        self._blank = list(range(num_slots - 1, -1, -1))
        self._held: dict[int, int] = {}
        self._spare: dict[int, int] = {}
        self._pending: dict[int, list[Snapshot]] = {}
        self._newest: dict[int, Snapshot] = {}

    @property
    def num_free(self) -> int:
        """Slots that a sequence can have, those of known snapshots included."""
        return len(self._blank) + len(self.snapshots)

    def slot(self, sequence_id: int) -> int:
        """The slot of a sequence."""
        return self._held[sequence_id]

    def has(self, name: Name) -> bool:
        """Returns whether there is a snapshot of that name."""
        return self.snapshots.get(name) is not None

    def take(self, sequence_id: int, after: Name | InitialRecord | None = None) -> None:
        """Gives a sequence a slot, with the record of a snapshot that is known, or that one.

        Without any the sequence begins, and whatever the slot holds counts as zeros. There must be
        a free slot, and a sequence that has one keeps it.
        """
        if sequence_id in self._held:
            return
        if isinstance(after, InitialRecord):
            slot = self._held[sequence_id] = self._free_slot()
            self.copies.append((after, slot))
            return
        found = None if after is None else self.snapshots.use(after)
        if found is None:
            self._held[sequence_id] = self._free_slot()
        elif found.name == sequence_id or self.num_free == 1:  # nobody else's, or the only one left
            self._held[sequence_id] = self.snapshots.remove(found)
        else:
            self._copy_to(sequence_id, found)

    def fork(self, owner_id: int, sequence_id: int, most: int) -> int:
        """Gives a sequence a slot, with the last record that another has pending, of at most so
        many tokens. Returns how many; 0 if there is none, or no free slot."""
        pending = [each for each in self._pending.get(owner_id, ()) if each.position <= most]
        if not pending or not self.num_free:
            return 0
        self._copy_to(sequence_id, pending[-1])
        return pending[-1].position

    def release(self, sequence_id: int) -> None:
        """Takes the sequence's slot, and what nobody else can find; one without any is fine."""
        self._leave(sequence_id)
        own = self.snapshots.get(sequence_id)
        if own is not None:
            self._blank.append(self.snapshots.remove(own))
        if sequence_id in self._held:
            self._blank.append(self._held.pop(sequence_id))

    def set_aside(self, sequence_id: int, position: int, page: PrefixPage | None) -> None:
        """Makes the sequence's record a snapshot of its own, as the steps that were given leave it:
        after so many tokens, of which `page` is the last that is known."""
        self._leave(sequence_id)
        record = Snapshot(self._held.pop(sequence_id), position)
        self.snapshots.add(record, sequence_id, page)

    def snapshot(self, sequence_id: int, position: int, *, stays: bool = True) -> None:
        """Has the sequence's record copied as the step that is given now leaves it, after so many
        tokens; not where all slots are sequences'.

        Unless it `stays`, it is given up for the next one that becomes known.
        """
        if self.num_free:
            snapshot = Snapshot(self._free_slot(), position, stays)
            self.copies.append((self._held[sequence_id], snapshot.slot))
            self._pending.setdefault(sequence_id, []).append(snapshot)

    def publish(self, sequence_id: int, position: int, page: PrefixPage | None) -> None:
        """Makes the sequence's snapshot at a position known, as what comes after that page; those
        before it are given up."""
        pending = self._pending.pop(sequence_id, [])
        later = [each for each in pending if each.position > position]
        if later:
            self._pending[sequence_id] = later
        for snapshot in pending[: len(pending) - len(later)]:
            if snapshot.position == position and page is not None and not self.has(page):
                self._make_known(sequence_id, snapshot, page)
            else:
                self._blank.append(snapshot.slot)

    def reserve(self, sequence_id: int) -> bool:
        """Keeps a slot for the record of a sequence while it guesses; False if none is free."""
        if sequence_id not in self._spare and self.num_free:
            self._spare[sequence_id] = self._free_slot()
        return sequence_id in self._spare

    def free_reserved(self) -> None:
        """Takes the slots that were kept for guesses."""
        self._blank.extend(self._spare.values())
        self._spare.clear()

    def guard(self, sequence_id: int) -> None:
        """Has the record copied to the slot that is kept, as the steps before leave it."""
        self.copies.append((self._held[sequence_id], self._spare[sequence_id]))

    def rewind(self, sequence_id: int) -> None:
        """Puts the record back that was guarded."""
        self._blank.append(self._held[sequence_id])
        self._held[sequence_id] = self._spare.pop(sequence_id)

    def snapshot_after(self, page: PrefixPage) -> int | None:
        """The slot of the snapshot after that page; None where there is none."""
        found = self.snapshots.get(page)
        return None if found is None else found.slot

    def clear(self) -> None:
        """Forgets all snapshots but those that sequences left of themselves."""
        for sequence_id in [*self._pending]:
            self._drop_pending(sequence_id)
        self._blank.extend(self.snapshots.clear())
        self._newest.clear()

    def check(self) -> None:
        """Raises InternalError unless every slot has one use."""
        pending = [each.slot for several in self._pending.values() for each in several]
        known = [each.slot for each in self.snapshots]
        used = [*self._blank, *self._held.values(), *self._spare.values(), *pending, *known]
        if sorted(used) != list(range(self.num_slots)):
            raise InternalError(f"slots that are lost or used twice: {sorted(used)}")

    def _make_known(self, sequence_id: int, snapshot: Snapshot, page: PrefixPage) -> None:
        self.snapshots.add(snapshot, page, page.parent)
        newest = self._newest.pop(sequence_id, None)
        if newest is not None and not newest.stays and self.snapshots.get(newest.name) is newest:
            self._blank.append(self.snapshots.remove(newest))
        self._newest[sequence_id] = snapshot

    def _leave(self, sequence_id: int) -> None:
        self._newest.pop(sequence_id, None)
        self._drop_pending(sequence_id)
        if sequence_id in self._spare:
            self._blank.append(self._spare.pop(sequence_id))

    def _drop_pending(self, sequence_id: int) -> None:
        self._blank.extend(each.slot for each in self._pending.pop(sequence_id, ()))

    def _copy_to(self, sequence_id: int, source: Snapshot) -> None:
        slot = self._held[sequence_id] = self._free_slot(source)
        self.copies.append((source.slot, slot))

    def _free_slot(self, kept: Snapshot | None = None) -> int:
        return self._blank.pop() if self._blank else self.snapshots.give_up(kept)
