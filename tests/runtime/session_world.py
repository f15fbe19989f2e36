"""A world in which some sequences are requests of sessions, which rest between them."""

from __future__ import annotations

from ingot.runtime.scheduler import AGING
from ingot.runtime.sequence import Sequence
from ingot.runtime.sessions.state import SessionState
from tests.runtime.world import PARAMS, STEMS, World

MOST_SESSIONS = 5


class SessionWorld(World):
    """Sessions go on from their tokens, from fewer of them, or from others, or are closed.

    `num_resumed` counts the requests that began with what their session held.
    """

    def __init__(self, seed: int, **options: int) -> None:
        super().__init__(seed, **options)
        self.sessions: list[SessionState] = []
        self.num_resumed = 0
        wake = self.scheduler.resting.wake

        def counted(state: SessionState, sequence: Sequence | None = None) -> int:
            self.num_resumed += 1
            return wake(state, sequence)

        self.scheduler.resting.wake = counted  # type: ignore[method-assign]

    def add(self, priority: int = 0, scored: bool = False) -> Sequence:
        rng = self.rng
        idle = [each for each in self.sessions if not each.turn.locked()]
        if rng.random() < 0.3 or not (idle or len(self.sessions) < MOST_SESSIONS):
            return super().add(priority, scored)
        number = self.num_added
        self.num_added += 1
        if not idle or (rng.random() < 0.3 and len(self.sessions) < MOST_SESSIONS):
            state = SessionState(sequence_id=10_000 + number, seed=0, key=0)
            self.sessions.append(state)
        else:
            state = rng.choice(idle)
        state.begin()
        state.keeps_last = rng.random() < 0.6
        tokens = self._fed(state)
        sequence = Sequence(
            state.sequence_id, tokens, PARAMS, rng.randrange(len(tokens) + 1, self.max_len + 1),
            rank=(number + AGING * priority, number), session=state,
        )  # fmt: skip
        self.alive.append(sequence)
        self.scheduler.add(sequence)
        self.prepared = None
        return sequence

    def _fed(self, state: SessionState) -> list[int]:
        """The tokens that a request of a session begins with."""
        rng, tokens = self.rng, [*state.token_ids]
        if rng.random() < 0.2:
            tokens = tokens[: rng.randrange(len(tokens) + 1)]
        if len(tokens) > self.max_len - 8:
            tokens = rng.choice(STEMS)[: rng.randrange(1, 9)]
        tokens += [rng.randrange(2) for _ in range(rng.randrange(7))]
        return tokens or [1]

    def leave(self, sequence: Sequence) -> None:
        super().leave(sequence)
        if sequence.session is not None:
            sequence.session.end(sequence)
            if self.rng.random() < 0.1:
                sequence.session.closed = True
                self.scheduler.resting.forget(sequence.session)
                self.sessions.remove(sequence.session)

    def owners(self) -> list[int]:
        resting = [each.sequence_id for each in self.sessions if each in self.scheduler.resting]
        return [*super().owners(), *resting]

    def finish(self) -> None:
        super().finish()
        for state in self.sessions:
            self.scheduler.resting.forget(state)
        self.check()
        assert self.pages.num_free == self.pages.num_pages
