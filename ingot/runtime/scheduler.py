"""Which tokens of which sequences the next step computes. It touches no tensor."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ingot.runtime.page_table import PageTable
from ingot.runtime.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """`num_tokens` of a sequence, from its token `num_computed` on.

    `wants_logits`: the chunk ends with the sequence's last token, so the next one can be drawn.
    """

    sequence: Sequence
    num_tokens: int
    wants_logits: bool


class Scheduler:
    """One budget of tokens a step: every decoding sequence first, then prompts in chunks.

    Sequences run in the order of their arrival. A waiting one is admitted when the pages of all
    its tokens are free. When a decoding one needs a page and there is none, the latest arrival
    gives up its pages and is computed again later. So the oldest always advances, and every
    sequence ends, provided the pages of the longest fit alone.
    """

    def __init__(self, pages: PageTable, *, max_num_seqs: int, max_num_tokens: int) -> None:
        self.pages = pages
        self.max_num_seqs = max_num_seqs
        self.max_num_tokens = max_num_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forgets a sequence in whatever state it is, and frees its pages."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.pages.release(sequence.sequence_id)

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step; empty only when there is no sequence at all."""
        chunks: list[Chunk] = []
        budget = self.max_num_tokens
        for sequence in [s for s in self.running if s.num_remaining == 1]:
            if budget and sequence in self.running and self._make_room(sequence):
                budget -= self._take(chunks, sequence, budget)
        # A victim of a later sequence may already have been taken into the step.
        chunks = [chunk for chunk in chunks if chunk.sequence in self.running]
        for sequence in self.running:
            if budget and sequence.num_remaining > 1:
                budget -= self._take(chunks, sequence, budget)
        while budget and self._admit():
            budget -= self._take(chunks, self.running[-1], budget)
        return chunks

    def advance(self, chunks: list[Chunk]) -> None:
        """Notes that a step has computed these chunks."""
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.num_tokens

    def free_up(self, num_pages: int) -> None:
        """Preempts the latest arrivals until that many pages are free, or nothing runs."""
        while self.pages.num_free < num_pages and self.running:
            self._preempt()

    def _take(self, chunks: list[Chunk], sequence: Sequence, budget: int) -> int:
        num_tokens = min(budget, sequence.num_remaining)
        chunks.append(Chunk(sequence, num_tokens, num_tokens == sequence.num_remaining))
        return num_tokens

    def _make_room(self, sequence: Sequence) -> bool:
        """Gives the sequence the page of its next token; False when it had to yield itself."""
        num_tokens = len(sequence.token_ids)
        while not self.pages.can_grow(sequence.sequence_id, num_tokens):
            if self._preempt() is sequence:
                return False
        self.pages.grow(sequence.sequence_id, num_tokens)
        return True

    def _preempt(self) -> Sequence:
        victim = self.running.pop()
        self.pages.release(victim.sequence_id)
        victim.num_computed = 0
        self.waiting.appendleft(victim)
        self.num_preemptions += 1
        return victim

    def _admit(self) -> bool:
        if not self.waiting or len(self.running) >= self.max_num_seqs:
            return False
        sequence = self.waiting[0]
        num_tokens = len(sequence.token_ids)
        # One page in hand for each running sequence, or the next step would preempt this one.
        spare = len(self.running) * self.pages.page_size
        if not self.pages.can_grow(sequence.sequence_id, num_tokens + spare):
            return False
        self.pages.grow(sequence.sequence_id, num_tokens)
        self.running.append(self.waiting.popleft())
        return True
