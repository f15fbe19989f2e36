"""A scheduler in a world without a model: pages and slots hold the prefixes written to them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from ingot.runtime.config import EngineConfig
from ingot.runtime.page_table import PageTable
from ingot.runtime.params import SamplingParams
from ingot.runtime.prefix_cache import PrefixCache
from ingot.runtime.residence import Residence
from ingot.runtime.scheduler import AGING, Scheduler
from ingot.runtime.sequence import Chunk, Sequence
from ingot.runtime.slot_table import Copy

PARAMS = SamplingParams()
SCORED = SamplingParams(prompt_logprobs=0)
FIRST_SIBLING = 10**6  # ids of their own
STEMS = [[stem] * 40 for stem in range(3)]
Record = tuple[object, object]  # what all tokens have left, and the last of them
ZEROS: Record = (0, 0)
POISON: Record = ("nan", "nan")  # what a slot holds that is nobody's


@dataclass(frozen=True)
class Flight:
    """A step that has begun: its chunks, and what it was told, as it was at that time.

    `slots` has the slot of each chunk's sequence; None where states have none.
    """

    chunks: list[Chunk]
    pages: list[list[int]]
    slots: list[int | None]
    copies: list[Copy]


class World:
    """Random events on a scheduler, and everything that must hold after each.

    While a step runs, the next one may be scheduled, and may even begin. Every slot remembers the
    prefix (tokens up to it, and salt) whose keys and values it holds, and a chunk may only be
    computed when all slots before it hold the sequence's own. With `drafts`, tokens that a step
    guesses are written as well, and about half of them turn out right. With `num_slots`, each
    sequence has a record, too, which must be what its tokens so far have left; free slots are
    poisoned. Unless the model `has_pages`, the record is all that it has.
    """

    def __init__(
        self, seed: int, *, num_pages: int = 10, page_size: int = 4, max_len: int = 36,
        max_num_seqs: int = 4, max_num_tokens: int = 11, chunk_tokens: int | None = None,
        hash_bits: int = 8, uses_prefixes: bool = True, window: int = 0, drafts: bool = False,
        num_slots: int = 0, has_pages: bool = True,
    ) -> None:  # fmt: skip
        self.rng = random.Random(seed)
        self.max_len = max_len
        prefix = PrefixCache(page_size, hash_bits=hash_bits)
        self.pages = PageTable(num_pages, page_size, prefix, window=window)
        self.residence = Residence(self.pages, num_slots, has_pages=has_pages)
        self.window = window or max_len
        self.scheduler = Scheduler(
            self.residence, max_num_seqs=max_num_seqs, max_num_tokens=max_num_tokens,
            max_num_rows=max_num_seqs + 4 * drafts,
            config=EngineConfig(chunk_tokens=chunk_tokens, prefix_cache=uses_prefixes),
            drafter=self._guess if drafts else None,
        )  # fmt: skip
        self.drafts, self.num_kept = drafts, 0
        self.slots: dict[int, int] = {}
        self.records: dict[int, Record] = dict.fromkeys(range(num_slots), POISON)
        self.alive: list[Sequence] = []
        self.num_added = self.num_steps = self.num_ended = 0
        self.num_siblings = FIRST_SIBLING
        self.prepared: list[Chunk] | None = None
        self.flying: Flight | None = None

    def add(self, priority: int = 0, scored: bool = False) -> Sequence:
        """A sequence that has a stem in common with others, and one of three salts."""
        rng, number = self.rng, self.num_added
        self.num_added += 1
        length = rng.randrange(1, self.max_len)
        tokens = rng.choice(STEMS)[: rng.randrange(length + 1)]
        tokens = tokens + [rng.randrange(2) for _ in range(length - len(tokens))]
        sequence = Sequence(
            number, tokens, SCORED if scored else PARAMS,
            rng.randrange(length + 1, self.max_len + 1),
            rank=(number + AGING * priority, number), salt=rng.choice([b"", b"", b"a", b"b"]),
        )  # fmt: skip
        sequence.borders = {self.residence.border(rng.randrange(self.max_len))}
        if rng.random() < 0.2 and length + 1 < sequence.max_len:
            sequence.siblings = [self._sibling(sequence) for _ in range(rng.randrange(1, 4))]
        self.alive.append(sequence)
        self.scheduler.add(sequence)
        self.prepared = None
        return sequence

    def leave(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self.alive.remove(sequence)
        sequence.finish_reason = "abort"
        self.num_ended += 1
        self.prepared = None

    def step(self, *, overlap: bool, ahead: bool = False) -> None:
        """One step; with overlap the next one is scheduled meanwhile, and some leave. `ahead`
        begins it, too."""
        flight, self.flying = self.flying, None
        if flight is None:
            chunks, self.prepared = self.prepared or self.scheduler.schedule(), None
            if not chunks:
                assert not self.alive, "somebody can always run"
                return
            self._check_first(chunks)
            flight = self._begin(chunks)
        self._write(flight)
        chunks = flight.chunks
        if overlap:
            if self.rng.random() < 0.2 and self.alive:
                self.leave(self.rng.choice(self.alive))
            if not any(chunk.draft for chunk in chunks):  # or else nobody knows who is how long
                self.prepared = self.scheduler.schedule() or None
        if ahead and self.prepared and not self.drafts:  # no device that runs ahead takes drafts
            self.flying, self.prepared = self._begin(self.prepared), None
        self.scheduler.complete(chunks)
        for chunk in chunks:
            if not chunk.sequence.finished:
                self._draw(chunk)
        self.scheduler.conclude(chunks)
        self.num_steps += 1

    def _guess(self, sequences: list[Sequence], room: int) -> list[list[int]]:
        """Tokens that may follow, in the scheduler's room but beyond ends, limits and pages."""
        drafts = []
        for _ in sequences:
            draft = [self.rng.randrange(2) for _ in range(self.rng.randrange(min(room, 6) + 1))]
            room -= len(draft)
            drafts.append(draft)
        return drafts

    def _begin(self, chunks: list[Chunk]) -> Flight:
        self._check_chunks(chunks)
        ids = [chunk.sequence.sequence_id for chunk in chunks]
        slots = [self.residence.slots.slot(i) if self.residence.has_slots else None for i in ids]
        pages = [[*self.pages.page_ids(i)] for i in ids]
        return Flight(chunks, pages, slots, self.scheduler.advance(chunks))

    def _draw(self, chunk: Chunk) -> None:
        s = chunk.sequence
        for position in range(chunk.end - chunk.num_rows, min(chunk.end, s.num_prompt - 1)):
            if s.params is SCORED and position == len(s.prompt_logprobs):
                s.prompt_logprobs.append({})
        if not chunk.draws:
            return
        if s.num_generated == 0:
            assert s.num_unscored == 0, "every prompt token has got its row"
        s.num_pending -= 1
        self._append(s)
        while not s.finished and 0 < chunk.num_drawn <= len(chunk.draft):
            if s.token_ids[-1] != chunk.draft[chunk.num_drawn - 1]:
                break
            self.scheduler.keep(chunk)
            self.num_kept += 1
            self.prepared = None
            self._append(s)

    def _append(self, s: Sequence) -> None:
        siblings, s.siblings = s.siblings, []
        for sibling in siblings:
            sibling.token_ids.append(self.rng.randrange(2))
            self.alive.append(sibling)
            self.scheduler.fork(s, sibling)
            self.prepared = None
        s.token_ids.append(self.rng.randrange(2))
        if len(s.token_ids) >= s.max_len or self.rng.random() < 0.05:
            self.leave(s)

    def _sibling(self, first: Sequence) -> Sequence:
        """Another completion of a prompt, which waits until that is computed."""
        number = self.num_siblings
        self.num_siblings += 1
        return Sequence(
            number, [*first.token_ids], PARAMS, first.max_len,
            rank=(first.rank[0], number), salt=first.salt,
        )  # fmt: skip

    def _check_chunks(self, chunks: list[Chunk]) -> None:
        s = self.scheduler
        assert sum(chunk.num_tokens for chunk in chunks) <= s.max_num_tokens
        num_drafted = sum(len(chunk.draft) for chunk in chunks)
        assert sum(chunk.num_rows for chunk in chunks) + num_drafted <= s.max_num_rows
        assert not num_drafted or all(chunk.decodes for chunk in chunks)
        assert len({id(chunk.sequence) for chunk in chunks}) == len(chunks) <= s.max_num_seqs
        for chunk in chunks:
            q = chunk.sequence
            assert q in s.running and q.num_pending <= 1
            assert q.num_computed == chunk.start < chunk.end <= q.length
            assert chunk.draws == (chunk.end == q.length)
            assert chunk.start + chunk.num_reread == max(chunk.start, q.num_rewound)
            assert chunk.num_rows >= chunk.draws
            if chunk.draft:
                assert q.num_generated and not q.num_pending, "the last token is known"
                assert chunk.end + len(chunk.draft) < q.max_len
            if s.chunk_tokens and not chunk.decodes:
                assert chunk.end - chunk.start <= s.chunk_tokens

    def _check_first(self, chunks: list[Chunk]) -> None:
        first = min(self.alive, key=lambda q: q.rank)
        if first.is_running:
            assert first in [chunk.sequence for chunk in chunks], "the first always advances"

    def _write(self, flight: Flight) -> None:
        """Computes the chunks: what they look back at must be the sequences' own."""
        size = self.pages.page_size
        self._copy(flight.copies)
        for chunk, page_ids, slot_of in zip(flight.chunks, flight.pages, flight.slots, strict=True):
            q = chunk.sequence
            prefix, record = hash(q.salt), ZEROS
            unknown = [-1] * (chunk.end - len(q.token_ids))  # of one that ended meanwhile
            assert q.finished or not unknown
            tokens = [*q.token_ids[: chunk.end], *unknown, *chunk.draft]
            for position, token in enumerate(tokens):
                if slot_of is not None and position == chunk.start:
                    assert self._read(slot_of, position) == record, "a slot holds another record"
                prefix, record = hash((prefix, token)), (hash((record[0], token)), token)
                slot = page_ids[position // size] * size + position % size
                if not self.residence.has_pages or position <= chunk.start - self.window:
                    continue
                if position < chunk.start:
                    assert self.slots.get(slot) == prefix, "a page holds another prefix"
                else:
                    assert slot // size not in self.pages.prefix or position < chunk.end, "known"
                    self.slots[slot] = prefix
            if slot_of is not None:
                self.records[slot_of] = record
        self._poison()

    def _copy(self, copies: list[Copy]) -> None:
        for source, to in copies:
            state, last = self.records[source]
            self.records[to] = state, last

    def _read(self, slot: int, start: int) -> Record:
        """The record that a chunk begins with: that of a new sequence counts as zeros."""
        return self.records[slot] if start else ZEROS

    def _poison(self) -> None:
        """Spoils all slots that nobody has, but those that a copy is still to be made of."""
        flying = self.flying
        copied = [source for source, _ in self.residence.slots.copies]
        copied += [source for source, _ in flying.copies] if flying else []
        written = [] if flying is None else flying.slots
        for slot in {*self.residence.slots._blank}.difference(copied, written):
            self.records[slot] = POISON

    def owners(self) -> list[int]:
        """Ids of who has pages."""
        return [q.sequence_id for q in self.scheduler.running]

    def check(self) -> None:
        """What holds between any two events."""
        s, pages = self.scheduler, self.pages
        self.residence.check()
        assert all(slot // pages.page_size < pages.num_used for slot in self.slots)
        used = {p for owner in self.owners() for p in pages.owned(owner)}
        assert pages.num_free + len(used) == pages.num_pages
        everyone = [*s.running, *s.waiting]
        assert sorted(map(id, everyone)) == sorted(map(id, self.alive))
        assert all(q.num_computed == 0 and not q.is_running for q in s.waiting)
        assert all(q.is_running for q in s.running) and len(s.running) <= s.max_num_seqs
        for queue in (s.running, s.waiting):
            assert [q.rank for q in queue] == sorted(q.rank for q in queue)
        shared = Counter(p for q in s.running for p in pages.owned(q.sequence_id))
        known = [p for p, count in shared.items() if count > 1]
        self._check_shared(known)
        if not everyone and not s.resting:
            assert pages.num_free == pages.num_pages
            assert self.residence.slots.num_free == self.residence.slots.num_slots

    def _check_shared(self, page_ids: list[int]) -> None:
        """A page in two tables is at the same place of equal prefixes of equal salts."""
        size = self.pages.page_size
        for page_id in page_ids:
            prefixes = set()
            for q in self.scheduler.running:
                if page_id in self.pages.owned(q.sequence_id):
                    ids = self.pages.page_ids(q.sequence_id)
                    end = (len(ids) - ids[::-1].index(page_id)) * size
                    assert end <= q.num_computed, "a shared page is not written any more"
                    prefixes.add((q.salt, tuple(q.token_ids[:end])))
            assert len(prefixes) == 1

    def run_random(self, count: int) -> None:
        """Random events, with what must hold checked after each."""
        rng = self.rng
        for _ in range(count):
            action = rng.random()
            if action < 0.12 and len(self.alive) < 12:
                self.add(rng.choice([0, 0, 0, -1, 1]), scored=rng.random() < 0.15)
            elif action < 0.15 and self.alive:
                self.leave(rng.choice(self.alive))
            elif action < 0.17:
                self.scheduler.free_up(rng.randrange(self.pages.num_pages + 1), rng.randrange(3))
                self.prepared = None
            elif action < 0.175:
                self.residence.forget_prefixes()
            else:
                self.step(overlap=rng.random() < 0.7, ahead=rng.random() < 0.7)
            self.check()

    def finish(self) -> None:
        """Runs until everybody has come to the end."""
        steps = 0
        while self.alive:
            self.step(overlap=steps % 2 == 0)
            self.check()
            steps += 1
            assert steps < 100_000
