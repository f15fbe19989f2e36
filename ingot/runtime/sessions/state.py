"""What an engine knows of a session."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

import numpy as np

from ingot.errors import SessionError
from ingot.runtime.arrays import Float32
from ingot.runtime.initial_record import InitialRecord


class Asked(Protocol):
    """Protocol of a request's sequence, as far as its session looks at it."""

    token_ids: list[int]

    @property
    def prompt_ids(self) -> list[int]: ...

    @property
    def num_generated(self) -> int: ...

    @property
    def has_failed(self) -> bool: ...


@dataclass(slots=True, eq=False, kw_only=True)
class SessionState:
    """A session between its requests, each of which is a sequence that begins with its tokens.

    All of them are `sequence_id`, which owns its pages and its slot; `seed` and `key` name it to
    the sampler's generator, which counts by positions.

    Attributes:
        salt: keeps its prefixes apart; also from those of other records that sequences begin with.
        initial: its record before the first token; None: zeros.
        token_ids: what was fed and drawn, in order.
        num_drawn: the last of them that were drawn since something was fed. Penalties count them.
        held_ids: the tokens whose states lie in the places of `sequence_id`: mostly those of
            `token_ids`, but for the last ones. One too many where a step had been given already
            when the request ended.
        num_held: how many of these are there; 0 once the places were given up, and while a
            sequence has them.
        logits: of the token after the last one, where all are held and the last step had them.
        sequence: who had the places last.
        coming: what follows the tokens of the request that runs, and need not be computed yet.
        keeps_last: whether its last token stays.
        turn: is held while the session does something.
    """

    sequence_id: int
    seed: int
    key: int
    salt: bytes = b""
    initial: InitialRecord | None = None
    token_ids: list[int] = field(default_factory=list)
    num_drawn: int = 0
    held_ids: list[int] = field(default_factory=list)
    num_held: int = 0
    logits: Float32 | None = None
    sequence: Asked | None = None
    coming: list[int] = field(default_factory=list)
    keeps_last: bool = True
    turn: Lock = field(default_factory=Lock)
    closed: bool = False

    def begin(self) -> None:
        """Takes the session's turn: it does one thing at a time. Raises SessionError."""
        if self.closed:
            raise SessionError("the session is closed", hint="Open or load another one.")
        if not self.turn.acquire(blocking=False):
            raise SessionError(
                "the session does something else",
                hint="Wait for the end of that, or close its stream; or fork the session before.",
            )

    def take(self, sequence: Asked | None) -> int:
        """Hands the places to a sequence that begins; returns how many tokens they hold."""
        count, self.num_held, self.sequence = self.num_held, 0, sequence
        return count

    def end(self, sequence: Asked) -> None:
        """Takes over the tokens of a request that has ended, unless by an error, and the turn."""
        if not sequence.has_failed:
            tokens, num_drawn = [*sequence.token_ids], sequence.num_generated
            if num_drawn and not self.keeps_last:
                num_drawn -= 1
                tokens.pop()
            before = self.num_drawn if sequence.prompt_ids == self.token_ids else 0
            self.become([*tokens, *self.coming], before + num_drawn)
        self.done()

    def done(self) -> None:
        """Gives the turn back."""
        self.coming, self.keeps_last = [], True
        self.turn.release()

    def become(self, token_ids: list[int], num_drawn: int = 0) -> None:
        """Sets the tokens, whatever is held."""
        if token_ids != self.token_ids:
            self.logits = None
        self.token_ids, self.num_drawn = token_ids, num_drawn

    def logits_after(self, token_ids: list[int]) -> Float32 | None:
        """The logits of the token after these, where they are known."""
        return self.logits if token_ids == self.token_ids else None

    def rest(self, token_ids: list[int], count: int) -> None:
        """Takes back the places, which hold the states of the first `count` of these tokens."""
        self.held_ids, self.num_held = token_ids, count

    def num_common(self, token_ids: list[int]) -> int:
        """How many of the tokens that the places hold another list begins with."""
        count = min(self.num_held, len(token_ids))
        held, given = self.held_ids[:count], token_ids[:count]
        if held == given:
            return count
        return int(np.argmin(np.equal(held, given)))
