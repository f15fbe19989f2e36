"""Scheduler: chooses the sequences and tokens of the next step. It touches no tensor."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from operator import attrgetter

from ingot.errors import QueueFullError
from ingot.runtime.config import EngineConfig
from ingot.runtime.initial_record import Copy
from ingot.runtime.residence import Residence
from ingot.runtime.sequence import Chunk, Sequence
from ingot.runtime.sessions.resting import Resting

# A request of one level lower priority counts as one that arrived this many requests later. So
# every request is overtaken by a limited number of others, and none waits for ever.
AGING = 64

_rank = attrgetter("rank")


# Guesses what follows the tokens of each sequence, in so many tokens at most; or nothing at all.
Drafter = Callable[[list[Sequence], int], list[list[int]]]


class Scheduler:
    """One budget of tokens a step: every decoding sequence first, then prompts in chunks.

    Sequences run in the order of their rank. The first waiting one is admitted when the pages of
    all its tokens are free. Where all layers look back at a window only, the pages of its first
    chunk suffice. When a running sequence needs a page and none is free, the one of the last rank
    gives up its place and goes on later, from what is still there by then. So the first always
    advances, and every sequence ends, provided that the longest fits alone.

    `max_num_rows` limits the tokens of a step that get logits. Steps in which all sequences decode
    also compute what the `drafter` guesses, where there is room: nobody gives up a page for it.

    Where a sequence has a record, steps end at borders of pages, and what they leave there is kept:
    at the last border of a prompt, where it leaves the pages that are known, where its request
    says so, and at the newest border that it has come to.
    """

    def __init__(
        self,
        residence: Residence,
        *,
        max_num_seqs: int,
        max_num_tokens: int,
        max_num_rows: int,
        config: EngineConfig,
        drafter: Drafter | None = None,
    ) -> None:
        self.residence, self.pages = residence, residence.pages
        self.resting = Resting(residence)
        self._drafter = drafter
        self.max_num_rows = max_num_rows
        self._most_seqs, self._most_tokens = max_num_seqs, max_num_tokens
        self.configure(config)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    def configure(self, config: EngineConfig) -> None:
        """Sets the switches, from the next step on; they can only make steps smaller."""
        self.max_num_seqs = min(config.max_num_seqs or self._most_seqs, self._most_seqs)
        most = self._most_tokens
        self.max_num_tokens = min(config.max_num_batched_tokens or most, most)
        self.chunk_tokens = config.chunk_tokens
        self.uses_prefixes = config.prefix_cache
        self._takes_snapshots = self.uses_prefixes and self.residence.has_slots
        self._max_waiting = config.max_waiting
        if not self.uses_prefixes:
            self.residence.forget_prefixes()

    def check_room(self, num_sequences: int) -> None:
        """Raises QueueFullError if the queue has no room for this many more."""
        most, waiting = self._max_waiting, len(self.waiting)
        if most is not None and waiting + num_sequences > most:
            raise QueueFullError(
                f"{waiting} sequences wait, and {num_sequences} more are too many",
                hint=f"max_waiting is {most}; try again later.",
            )

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_rank)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Adds a sequence that begins with the computed tokens of another, and shares what these
        have left if it can run at once."""
        if parent.is_running and len(self.running) < self.max_num_seqs:
            common = min(parent.num_computed, child.num_prompt)
            shared = self.residence.share(parent.sequence_id, child.sequence_id, common)
            goes_on = shared or not self.residence.has_slots
            if goes_on and self.residence.can_grow(child.sequence_id, child.length):
                self.residence.grow(child.sequence_id, child.length)
                child.num_computed = child.num_cached = shared
                self._run(child)
                return
            self.residence.release(child.sequence_id)
        self.add(child)

    def remove(self, sequence: Sequence) -> None:
        """Forgets a sequence in any state, and frees what it holds; its session keeps that."""
        ran, sequence.is_running = sequence.is_running, False
        if ran:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        if ran and sequence.session is not None:
            self.resting.leave(sequence)
        elif sequence.session not in self.resting:
            self.residence.release(sequence.sequence_id)

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step.

        There are none if no sequence is left, or if all of them end with the step under way.
        """
        self.residence.slots.free_reserved()  # for drafts of a step that was dropped
        chunks: list[Chunk] = []
        before, size = self.num_preemptions, self.pages.page_size
        tokens = self.max_num_tokens
        for sequence in [s for s in self.running if s.decodes]:
            start, end = sequence.num_computed, sequence.length
            num_reread = end - start - 1
            if num_reread >= self.max_num_tokens:
                sequence.num_rewound = 0  # steps have become too small for it: it is a prompt again
                continue
            if sequence.num_pending and end >= sequence.max_len:
                continue  # it ends with the step that is under way
            if tokens <= num_reread or not sequence.is_running:
                continue
            # Its last page has room, or it gets another one.
            if (start % size and not num_reread) or self._make_room(sequence, end):
                chunks.append(Chunk(sequence, start, end, 1, True, num_reread=num_reread))
                tokens -= end - start
        rows, num_decoding = self.max_num_rows - len(chunks), len(chunks)
        prompts = [s for s in self.running if not s.decodes]
        while tokens > 0 and rows > 0:
            if not prompts and (self.num_preemptions > before or not self._admit(prompts)):
                break
            chunk = self._chunk(prompts.pop(0), tokens, rows)
            if chunk.sequence.is_running and self._make_room(chunk.sequence, chunk.end):
                chunks.append(chunk)
                tokens -= chunk.end - chunk.start
                rows -= chunk.num_rows
        only_decodes = len(chunks) == num_decoding
        # A sequence that had room may have lost it to another.
        chunks = [chunk for chunk in chunks if chunk.sequence.is_running]
        if self._drafter is not None and chunks and only_decodes:
            self._add_drafts(chunks, self._drafter, min(tokens, rows))
        return chunks

    def advance(self, chunks: list[Chunk]) -> list[Copy]:
        """Notes that a step that computes these chunks begins; returns the copies of records that
        it begins with."""
        for chunk in chunks if self.residence.has_slots else ():
            if chunk.draft:
                self.residence.slots.guard(chunk.sequence.sequence_id)
                chunk.sequence.has_guessed = True
        copies = self.residence.take_copies()
        for chunk in chunks:
            chunk.sequence.num_computed = chunk.end
            chunk.sequence.num_pending += chunk.draws
            if self.residence.has_slots and not chunk.draft:
                self._snapshot(chunk.sequence)
        return copies

    def complete(self, chunks: list[Chunk]) -> None:
        """Notes that this step is over.

        Others can now use the pages that it filled, and those that lie behind a window. Those of a
        sequence that guessed and has a record wait until its guesses are known to be right.
        """
        for chunk in chunks:
            if chunk.draft and self.residence.has_slots:
                continue
            s = chunk.sequence  # preempted meanwhile, it has no pages, or known ones only
            if s.session is not None and s.session.sequence is not s:
                continue  # the next one of its session writes there
            # Without what the next step computes, and without the draft, which nobody may find.
            self._settle(s, chunk.start, min(chunk.end, s.num_computed))

    def keep(self, chunk: Chunk) -> None:
        """Notes that the next token of a chunk's draft was right: the step has computed it.

        Nothing may have been scheduled since. A record has read the whole draft, so what it holds
        is known when the last token was right.
        """
        sequence = chunk.sequence
        sequence.num_computed += 1
        if not self.residence.has_slots:
            self._settle(sequence, sequence.num_computed - 1, sequence.num_computed)
        elif sequence.num_computed == chunk.end + len(chunk.draft):
            sequence.has_guessed = False
            self._snapshot(sequence)
            self._settle(sequence, chunk.start, sequence.num_computed)

    def conclude(self, chunks: list[Chunk]) -> None:
        """Notes that all is known about the drafts of a step that is over.

        Where a token was wrong that a record has read, the record is put back, and the next step
        of the sequence reads the right ones again.
        """
        for chunk in chunks if self.residence.has_slots else ():
            s = chunk.sequence
            if chunk.draft and s.is_running and s.num_computed < chunk.end + len(chunk.draft):
                self.residence.slots.rewind(s.sequence_id)
                s.has_guessed = False
                s.num_computed, s.num_rewound = chunk.start, s.num_computed

    def free_up(self, num_pages: int, num_sequences: int = 0) -> None:
        """Preempts the last ranks first, until there is room for as many more sequences, which take
        so many pages, or nothing is left. Sessions that rest go before any."""
        while not self.residence.has_room(num_pages, num_sequences):
            if not self.resting.give_up():
                if not self.running:
                    return
                self._preempt()

    def _chunk(self, sequence: Sequence, tokens: int, rows: int) -> Chunk:
        start, length = sequence.num_computed, sequence.length
        end = min(length, start + min(tokens, self.chunk_tokens or tokens))
        if self.residence.has_slots:
            end = self._cut(sequence, start, end)
        if not sequence.num_unscored:
            return Chunk(sequence, start, end, int(end == length), end == length)
        first = max(start, len(sequence.prompt_logprobs))
        end = min(end, first + rows)
        return Chunk(sequence, start, end, max(0, end - first), end == length)

    def _cut(self, sequence: Sequence, start: int, end: int) -> int:
        """Where a chunk ends that could go on to `end`, so that what it leaves can be kept."""
        borders = {self.residence.fork_point(sequence.num_prompt)} if sequence.siblings else set()
        if self._takes_snapshots:
            last = self.residence.border(end)
            borders |= {*sequence.borders, self.residence.border(sequence.length - 1)}
            borders |= {last} if end < sequence.length else set()
        return min((border for border in borders if start < border < end), default=end)

    def _snapshot(self, sequence: Sequence) -> None:
        """Has the record kept that the step which is given now leaves, where somebody may go on
        from it."""
        end, first = sequence.num_computed, sequence.num_prompt
        forks = sequence.siblings and end == self.residence.fork_point(first)
        if forks or (self._takes_snapshots and end == self.residence.border(end)):
            stays = end in sequence.borders or end == self.residence.border(first - 1)
            self.residence.snapshot(sequence.sequence_id, end, stays=stays)

    def _add_drafts(self, chunks: list[Chunk], drafter: Drafter, room: int) -> None:
        """Puts the chunks that got a draft behind those that got none."""
        drafts = drafter([chunk.sequence for chunk in chunks], room)
        if not any(drafts):
            return
        for chunk, draft in zip(chunks, drafts, strict=True):
            s = chunk.sequence
            if s.num_pending or not s.num_generated:  # the first token may be drawn for several
                continue
            draft = draft[: s.max_len - 1 - chunk.end]  # the last token is not computed
            if self._takes_snapshots:  # the record at the next border is kept
                draft = draft[: -chunk.end % self.pages.page_size]
            if draft and self.residence.can_guess(s.sequence_id, chunk.end + len(draft)):
                self.residence.grow(s.sequence_id, chunk.end + len(draft))
                chunk.draft = draft
        chunks.sort(key=lambda chunk: bool(chunk.draft))

    def _settle(self, sequence: Sequence, before: int, computed: int) -> None:
        """Makes known the pages that were filled since `before` tokens were computed."""
        size = self.pages.page_size
        if self.uses_prefixes and computed // size > before // size:
            self.residence.publish(
                sequence.sequence_id, sequence.token_ids, computed, sequence.salt
            )
        if self.pages.window:
            self.pages.drop_behind(sequence.sequence_id, computed)

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Gives a running sequence the pages of its first tokens; False if it yielded itself."""
        while not self.pages.can_grow(sequence.sequence_id, num_tokens):
            if self.resting.give_up():
                continue
            if self._preempt() is sequence:
                return False
        self.pages.grow(sequence.sequence_id, num_tokens)
        return True

    def _preempt(self) -> Sequence:
        victim = self.running.pop()
        victim.is_running = False
        self.residence.set_aside(victim.sequence_id, victim.num_computed)
        victim.num_computed = victim.num_rewound = 0
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.add(victim)
        return victim

    def _admit(self, prompts: list[Sequence]) -> bool:
        """Moves the first waiting sequence to the running ones and to `prompts`, if it fits."""
        if not self.waiting or len(self.running) >= self.max_num_seqs:
            return False
        sequence, length = self.waiting[0], self.waiting[0].length
        # One page in hand for each running sequence, or the next step would preempt this one.
        spare = len(self.running)
        if (self.pages.num_free <= spare and not self.resting) or length >= sequence.max_len:
            return False
        start, num_known = self._resume(sequence, spare), 0
        if start == 0:
            start, num_known = self._begin(sequence, spare)
        if start is None:
            return False
        sequence.num_computed = start
        if num_known > start:
            self._leaves_at(sequence, num_known)
        if not sequence.num_preemptions:
            sequence.num_cached = start
            self.pages.prefix.count(length, start)
            if self._takes_snapshots:
                self.residence.slots.snapshots.count(num_known, start)
        self._run(self.waiting.pop(0))
        prompts.append(sequence)
        return True

    def _begin(self, sequence: Sequence, spare: int) -> tuple[int | None, int]:
        """Gives a sequence the longest known beginning that it can go on from, and pages for its
        other tokens. Returns of how many tokens it has the states then, None where there is no
        room, and of how many pages are known."""
        # The last token is computed in any case: its logits are wanted.
        limit = sequence.length - 1 if self.uses_prefixes and not sequence.num_unscored else 0
        while True:
            known = self.pages.prefix.match(sequence.token_ids, limit, sequence.salt)
            prefix = self.residence.usable(known)
            start = self.residence.start(sequence.sequence_id, prefix)
            most = self._most(sequence, start)
            owner = sequence.sequence_id
            if self.residence.admit(owner, most, prefix, spare, sequence.initial):
                return start, len(known) * self.pages.page_size
            if not self.resting.give_up():
                return None, 0

    def _most(self, sequence: Sequence, start: int) -> int:
        """How many tokens a sequence must have room for that begins after `start` of them."""
        length = sequence.length
        return min(length, start + self.max_num_tokens) if self.pages.window else length

    def _resume(self, sequence: Sequence, spare: int) -> int | None:
        """Gives a sequence what its session holds, and pages for its other tokens. Returns of how
        many tokens it has the states then; None where there is no room."""
        state = sequence.session
        if state is None:
            return 0
        kept = self.resting.resume(state, sequence.token_ids, sequence.length - 1)
        if not kept:
            return 0
        most, owner = self._most(sequence, kept), state.sequence_id
        while self.pages.missing(owner, most) + spare > self.pages.num_free:
            if not self.resting.give_up(but=state):
                return None
        self.residence.grow(owner, most)
        return self.resting.wake(state, sequence)

    def _leaves_at(self, sequence: Sequence, position: int) -> None:
        """Notes where a sequence leaves the pages that are known: as others have come as far, more
        will."""
        sequence.borders.add(position)

    def _run(self, sequence: Sequence) -> None:
        if sequence.session is not None:
            sequence.session.sequence = sequence
        insort(self.running, sequence, key=_rank)
        sequence.is_running = True
