"""Work on sessions between the steps of an engine: rows of given tokens, forks, files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ingot.errors import InternalError, StateFileError
from ingot.runtime.arrays import Float32
from ingot.runtime.executor import Executor, Places
from ingot.runtime.forced import Forced, ForcedSteps, writer
from ingot.runtime.initial_record import InitialRecord, salt_with
from ingot.runtime.prefix_cache import PrefixPage
from ingot.runtime.request import INDEX_BITS
from ingot.runtime.sessions.owner import Owner
from ingot.runtime.sessions.resting import Resting
from ingot.runtime.sessions.state import SessionState
from ingot.runtime.sessions.state_file import (
    Belongs,
    Header,
    StateFile,
    salt_of,
    write_states,
)

Stopped = Callable[[], bool]


class Feeding(NamedTuple):
    """Tokens that a session is fed, and whether logits after each of them are wanted."""

    state: SessionState
    token_ids: list[int]
    wanted: bool = True


class Room(NamedTuple):
    """Free pages and slots that sequences will take."""

    num_pages: int
    num_seats: int


class SessionWork:
    """Sessions of an engine, between its steps."""

    def __init__(self, engine: Owner, executor: Executor) -> None:
        self._engine, self._executor = engine, executor
        self._scheduler = engine.scheduler
        self._residence = engine.scheduler.residence
        self.num_open = 0

    @property
    def resting(self) -> Resting:
        return self._scheduler.resting

    def open(
        self, salt: bytes = b"", seed: int | None = None, initial: InitialRecord | None = None
    ) -> SessionState:
        """A session without tokens. `seed` is for its draws; None: one of its own. Its record is
        `initial`, or zeros."""
        number, sequence_id = self._engine.next_numbers(1)
        key = 0 if seed is not None else (number + 1) << INDEX_BITS
        seed = self._engine.seed if seed is None else seed
        self.num_open += 1
        return SessionState(
            sequence_id=sequence_id,
            seed=seed,
            key=key,
            salt=salt_with(salt, initial),
            initial=initial,
        )

    def close(self, state: SessionState) -> None:
        """Takes what a session holds. Once for each."""
        self.num_open -= 1
        state.closed = True
        self.resting.forget(state)

    def logits(
        self, fed: Sequence[tuple[SessionState, list[int]]], stopped: Stopped = lambda: False
    ) -> list[Float32]:
        """Feeds sessions side by side; logits [T, V] of the tokens of each, of which every one has
        one at least. Raises RequestError, with nothing fed, for tokens that cannot be served."""
        for state, token_ids in fed:
            self._engine.check([*state.token_ids, *token_ids])
        self._engine.settle()
        return self._run([Feeding(state, token_ids) for state, token_ids in fed], stopped)

    def hold(self, state: SessionState) -> None:
        """Has the states of all tokens but the last computed, where they are not there. If the last
        one is computed as well, it stays."""
        self._engine.settle()
        whole, most = state.token_ids, len(state.token_ids) - 1
        common = state.num_common(whole)
        if common == state.num_held and common >= most:
            return
        if most <= 0:
            self.resting.forget(state)
            return
        logits, num_drawn, state.token_ids = state.logits, state.num_drawn, whole[:most]
        try:
            self._run([Feeding(state, [], wanted=False)])
        finally:
            state.token_ids, state.logits, state.num_drawn = whole, logits, num_drawn

    def fork(self, state: SessionState) -> SessionState:
        """A session with the same tokens, states and generator. Where there is no room for its
        states, they are computed when they are needed."""
        child = self.open()
        child.seed, child.key = state.seed, state.key
        child.salt, child.initial = state.salt, state.initial
        child.become([*state.token_ids], state.num_drawn)
        child.logits = state.logits
        count = state.num_common(state.token_ids)
        if state in self.resting and count == state.num_held:
            self._engine.settle()
            self._copy(state, child, count)
        return child

    def save(self, state: SessionState, path: Path, belongs: Belongs) -> int:
        """Writes a session into a file; returns its bytes. Raises as `write_states` does."""
        self.hold(state)
        count, key = state.num_held, state.key.to_bytes(16, "little")
        dropped, places = 0, Places([], None)
        if count:
            dropped = self._residence.pages.num_dropped(state.sequence_id)
            held = self._residence.places(state.sequence_id)
            needed = self._residence.pages.num_needed(count) - dropped
            places = Places(held.pages[:needed], held.slot)
        header = Header(
            belongs=belongs,
            tokens=np.array(state.token_ids, "<i4").tobytes(),
            num_held=count,
            num_dropped=dropped,
            num_drawn=state.num_drawn,
            seed=state.seed,
            key=key,
            salt=salt_of(state.salt),
            initial=b"" if state.initial is None else state.initial.digest,
            num_logits=0 if state.logits is None else len(state.logits),
        )

        def give(put: Callable[[memoryview], object]) -> None:
            self._executor.read_states(places, put)
            if state.initial is not None:
                put(memoryview(state.initial.data))

        return write_states(path, header, give, state.logits)

    def load(self, file: StateFile, salt: bytes = b"") -> SessionState:
        """A session of a file, whose header belongs to this artifact. Where there is no room for
        its states, they are computed when they are needed. Raises StateFileError."""
        header = file.header
        given = salt + b"\xff" + header.initial if header.initial else salt
        if header.salt != salt_of(given):
            raise StateFileError(
                f"{file.path} was saved with another cache_salt", hint="Load it with that."
            )
        token_ids = header.token_ids.tolist()
        if token_ids:
            self._engine.check(token_ids)
        state = self.open(given)
        state.become(token_ids, header.num_drawn)
        state.seed, state.key = header.seed, int.from_bytes(header.key, "little")
        try:
            state.logits = self.read(file, state, token_ids)
            state.initial = file.initial
        except BaseException:
            self.close(state)
            raise
        return state

    def publish(self, file: StateFile, num_tokens: int, salt: bytes) -> bool:
        """Makes the first tokens of a file known to the prefix cache, with their states; False
        where there is no room. Raises StateFileError."""
        header, residence = file.header, self._residence
        owner = self._engine.next_numbers(1)[1]
        self._engine.settle()
        places = residence.place(owner, num_tokens)
        if places is None:
            return False
        try:
            self._executor.write_states(places, file.first(len(places.pages)))
            file.finish()
            if residence.has_slots:
                residence.snapshot(owner, num_tokens)
            residence.publish(owner, header.token_ids[:num_tokens].tolist(), num_tokens, salt)
        finally:
            residence.release(owner)
        return True

    def read(self, file: StateFile, state: SessionState, token_ids: list[int]) -> Float32 | None:
        """Has a session hold the states of a file, if there is room; returns the file's logits.

        Raises StateFileError, and then holds nothing.
        """
        header = file.header
        self._engine.settle()
        places = self._place(state, header) if header.num_held else None
        if places is None:
            return file.verify()
        try:
            self._executor.write_states(places, file.fill)
            logits = file.finish()
        except BaseException:
            self._residence.release(state.sequence_id)
            raise
        self.resting.rest(state, token_ids, header.num_held)
        return logits

    def _place(self, state: SessionState, header: Header) -> Places | None:
        while True:
            places = self._residence.place(state.sequence_id, header.num_held, header.num_dropped)
            if places is not None or not self.resting.give_up():
                return places

    def _copy(self, state: SessionState, child: SessionState, count: int) -> None:
        """Has a fork hold what a session holds: full pages are shared, all else is copied."""
        residence, owner = self._residence, child.sequence_id
        pages, shared = residence.pages, count // residence.pages.page_size
        while not residence.has_room(pages.num_needed(count) - shared, 1):
            if not self.resting.give_up(but=state):
                return
        pages.share(state.sequence_id, owner, count)
        residence.grow(owner, count)
        held, own = residence.places(state.sequence_id), residence.places(owner)
        if held.slot is not None and own.slot is not None:
            self._executor.copy_records([(held.slot, own.slot)])
        partial = own.pages[shared - pages.num_dropped(owner) :]
        if partial:
            at = len(own.pages) - len(partial)
            data: list[bytes] = []
            self._executor.read_states(
                Places(held.pages[at : at + 1], None), lambda piece: data.append(bytes(piece))
            )
            left = iter(data)

            def fill(piece: memoryview) -> None:
                piece[:] = next(left)

            self._executor.write_states(Places(partial, None), fill)
        self.resting.rest(child, [*state.held_ids[:count]], count)

    def _run(self, fed: list[Feeding], stopped: Stopped = lambda: False) -> list[Float32]:
        """Computes tokens of sessions, as many of them side by side as there is room for."""
        steps, vocab_size = self._engine.forced_steps(), self._executor.vocab_size
        rows = [np.empty((len(each.token_ids), vocab_size), np.float32) for each in fed]
        begin = 0
        while begin < len(fed) and not stopped():
            group: list[Forced] = []
            room = Room(0, 0)
            for each, found in zip(fed[begin:], rows[begin:], strict=True):
                if len(group) == steps.max_num_seqs:
                    break
                forced, room = self._forced(each, found, room)
                if forced is None:
                    break
                group.append(forced)
            self._compute(steps, group, fed[begin : begin + len(group)], stopped)
            begin += len(group)
        for each, found in zip(fed, rows, strict=True):
            if each.wanted and not stopped():
                each.state.logits = found[-1].copy()
        return rows

    def _forced(self, fed: Feeding, rows: Float32, taken: Room) -> tuple[Forced | None, Room]:
        """What a session lacks, and the room that it takes with those before it; None where there
        is none beside them."""
        state, residence = fed.state, self._residence
        token_ids, first = [*state.token_ids, *fed.token_ids], len(state.token_ids)
        owner, size = state.sequence_id, residence.pages.page_size
        start = kept = self.resting.resume(state, token_ids, first)
        prefix: list[PrefixPage] = []
        pages = residence.pages.most_of(len(token_ids))
        if kept:
            pages = min(pages, residence.pages.missing(owner, len(token_ids)))
        elif self._scheduler.uses_prefixes:
            prefix = residence.match(token_ids, first, state.salt)
        room = Room(taken.num_pages + pages, taken.num_seats + (not kept))
        while not residence.has_room(*room):
            if self.resting.give_up(but=state):
                continue
            if taken.num_pages or taken.num_seats:
                return None, taken
            self._scheduler.free_up(*room)
            break
        if kept:
            self.resting.wake(state)
        elif prefix and residence.admit(owner, len(prefix) * size, prefix):
            start = len(prefix) * size
            room = Room(room.num_pages - len(prefix), room.num_seats - 1)
        state.sequence = None
        return Forced(owner, token_ids, writer(rows), first, start, state.initial), room

    def _compute(
        self, steps: ForcedSteps, group: list[Forced], fed: list[Feeding], stopped: Stopped
    ) -> None:
        if not group:
            raise InternalError("no session can run")
        left = [each for each in group if each.num_left]
        try:
            while left and not stopped():
                steps.step(left, steps.max_num_rows, whole=True)
                left = [each for each in left if each.num_left]
        except BaseException:
            for each in group:
                self._residence.release(each.id)
            raise
        for each, (state, _, _) in zip(group, fed, strict=True):
            if each.num_left:  # nobody waits for the rest
                self._residence.release(each.id)
                continue
            state.become(each.token_ids)
            if self._scheduler.uses_prefixes:
                self._residence.publish(each.id, each.token_ids, each.start, state.salt)
            self._residence.pages.drop_behind(each.id, each.start)
            self.resting.rest(state, each.token_ids, each.start)
