"""Speculation: guesses of the tokens to come are computed beside those that are known.

A draft is a guess that a step computes. Whatever is decided here changes how long tokens take, and
no token.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from time import perf_counter

from ingot.errors import UsageError
from ingot.runtime.config import EngineConfig
from ingot.runtime.executor import Executor
from ingot.runtime.prompt_lookup import PromptLookup
from ingot.runtime.sequence import Chunk, Sequence

GAIN = 1.05  # a draft must promise that many times the tokens a second
LOSS = 1 / 64  # of the time may go into drafts in vain,
LOOKS, LEAST_LOOKS = 1 / 128, 1 / 2048  # and into looks for guesses: less, the fewer are drafted
MOST_SAVED = 4.0  # plain steps
FIRST_LOAN = 0.5  # plain steps
FIRST_ROW = 0.25  # what a drafted token is thought to take of the time of a plain one
PLAIN_EVERY = 32  # steps: the time of a plain step has to be known
ROW_DECAY = 1 / 256  # in each plain step: what was too dear once may be cheaper now
LONGEST_REST = 64  # steps without looks
WAITS = 0.25


@dataclass(slots=True)
class Pace:
    """Seconds of steps of so many sequences: `plain` without drafts, `row` for a drafted token."""

    num_sequences: int
    plain: float = 0.0
    row: float = 0.0
    last_row: float = inf
    num_plain: int = 0

    @property
    def is_known(self) -> bool:
        return self.num_plain > 1  # the first of its size may have waited for memory

    @property
    def token(self) -> float:
        """Seconds of a token without drafts."""
        return self.plain / self.num_sequences

    def take_plain(self, seconds: float) -> None:
        """Learns from a step without drafts. Other work of the host only ever adds to its time."""
        if self.num_plain == 0 or seconds < self.plain:
            self.plain = seconds
        else:
            self.plain += min(seconds - self.plain, self.plain / 4) / 8
        if not self.is_known:
            self.row = FIRST_ROW * self.token
        self.row *= 1 - ROW_DECAY
        self.num_plain += 1

    def take_drafted(self, seconds: float, num_drafted: int) -> float:
        """Learns from a step with drafts; returns what they have cost."""
        row = max(0.0, (seconds - self.plain) / num_drafted)
        # Of two in succession the less dear one counts: the rest is other work of the host.
        seen, self.last_row = min(row, self.last_row), row
        self.row += (seen - self.row) / 4
        return seen * num_drafted

    def length(self, chance: float, most: int) -> int:
        """Length of a draft that maximises tokens per second, if each token is right with that
        chance and the sequence has its share of the step."""
        if chance * self.token <= self.row:
            return 0  # the first token costs more than it promises, and later ones promise less
        best, length = GAIN / self.token, 0
        tokens = kept = 1.0
        for count in range(1, most + 1):
            kept *= chance
            tokens += kept
            rate = tokens / (self.token + count * self.row)
            if rate > best:
                best, length = rate, count
        return length


class Speculation:
    """Drafts for the sequences of steps that only decode, as long as they pay.

    The pace of steps and the chance of a guess say how long a draft should be. Should both be
    wrong, `saved` bounds what is lost: seconds that drafts have gained, and LOSS of all others.
    Drafts that cost more are not made. Where steps are so short that looking for guesses takes a
    part of them that counts, some steps pass without after each that has found nothing.

    `waits`: the next step should wait for the tokens of the one under way, since a draft has to
    follow them.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._guesses = config.guesses
        self._paces: dict[int, Pace] = {}
        self.saved = 0.0
        self._since_plain = self._rest = 0
        self._looked = 0.0  # seconds that looks for guesses took, beside the step under way
        self._wanted = 0.5  # the part of the last steps that had something to draft

    @property
    def waits(self) -> bool:
        return self._wanted > WAITS

    def drafts(self, sequences: list[Sequence], room: int) -> list[list[int]]:
        """The draft of each sequence of a step, of `room` tokens in all, many of them empty; or
        none at all."""
        if self._rest:
            self._rest -= 1
            return []
        began, pace = perf_counter(), self._pace(len(sequences))
        guesses = [self._guess(sequence, pace) for sequence in sequences]
        means = self._means(pace)
        wanted = means > 0 and any(guesses)
        self._wanted += (wanted - self._wanted) / 16
        self._looked = perf_counter() - began
        if pace.is_known and not (wanted or self.waits):
            share = max(LOOKS * self._wanted / WAITS, LEAST_LOOKS)
            self._rest = min(LONGEST_REST, int(self._looked / max(share * pace.plain, 1e-9)))
        if self._since_plain >= PLAIN_EVERY:
            means = 0
        room, found = min(room, means), []
        for sequence, guess in zip(sequences, guesses, strict=True):
            found.append([] if sequence.num_pending else guess[:room])
            room -= len(found[-1])
        return found

    def landed(self, chunks: list[Chunk], seconds: float) -> None:
        """Learns from a step that is over, with all that the host did for it."""
        looked, self._looked = self._looked, 0.0
        if self._rest or not all(chunk.decodes for chunk in chunks):
            return
        pace = self._pace(len(chunks))
        # What is read again is the price of drafts before.
        num_drafted = sum([len(chunk.draft) + chunk.num_reread for chunk in chunks])
        self._since_plain = self._since_plain + 1 if num_drafted else 0
        if not num_drafted:
            pace.take_plain(seconds - looked)
        elif pace.is_known:  # or else the switches have changed since
            num_gained = sum(max(0, chunk.num_drawn - 1) for chunk in chunks)
            self.saved += num_gained * pace.token - pace.take_drafted(seconds, num_drafted)
        self.saved = min(MOST_SAVED * pace.plain, self.saved + LOSS * pace.plain)

    def _guess(self, sequence: Sequence, pace: Pace) -> list[int]:
        """Guesses the next tokens of a sequence, as many as are worth a draft."""
        most, *sizes = self._guesses
        lookup = sequence.lookup
        if lookup is None or lookup.sizes != (*sizes,):
            lookup = sequence.lookup = PromptLookup(*sizes)
        guess, chance = lookup.guess(sequence.token_ids, most)
        return guess[: pace.length(chance, len(guess))] if pace.is_known else []

    def _pace(self, num_sequences: int) -> Pace:
        if num_sequences not in self._paces:
            self._paces[num_sequences] = Pace(num_sequences)
        return self._paces[num_sequences]

    def _means(self, pace: Pace) -> int:
        """Number of draft tokens that a step can afford."""
        if not pace.is_known:
            return 0
        means = self.saved + FIRST_LOAN * pace.plain
        return max(0, int(means / max(pace.row, 1e-9)))


def check_speculation(config: EngineConfig, executor: Executor, max_num_rows: int) -> None:
    """Raises UsageError where the switches ask for speculation that cannot be."""
    if config.speculative is None:
        return
    if not executor.takes_drafts:
        raise UsageError(
            f"speculative is {config.speculative!r}, and this device takes no drafts",
            hint="Speculation runs on CPUs: pass device='cpu', or leave it out.",
        )
    if max_num_rows < 2:
        raise UsageError(
            f"speculative is {config.speculative!r}, and a step gives the logits of one token",
            hint="Compile the model with --max-num-seqs 2 or more, or leave it out.",
        )
