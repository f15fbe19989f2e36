"""Resting: what sessions hold while none of their requests runs, and who gives it up first."""

from __future__ import annotations

from collections import OrderedDict

from ingot.runtime.residence import Residence
from ingot.runtime.sequence import Sequence
from ingot.runtime.sessions.state import SessionState


class Resting:
    """Sessions that hold pages or a slot and do nothing.

    They give these up when others need them, the one that has rested longest before the others.
    Its next request computes its tokens again, as that of a preempted sequence: from the prefixes
    and snapshots that are still known.
    """

    def __init__(self, residence: Residence) -> None:
        self._residence = residence
        self._states: OrderedDict[int, SessionState] = OrderedDict()
        self.num_given_up = 0

    def __bool__(self) -> bool:
        return bool(self._states)

    def __contains__(self, state: SessionState | None) -> bool:
        return state is not None and state.sequence_id in self._states

    def rest(self, state: SessionState, token_ids: list[int], count: int) -> None:
        """Has a session keep its places, with the states of its first `count` tokens."""
        if state.closed or not count:
            count = 0
            self._residence.release(state.sequence_id)
        else:
            self._states[state.sequence_id] = state
        state.rest(token_ids, count)

    def leave(self, sequence: Sequence) -> None:
        """Has the session of a sequence that ends rest, or give up what is of no use."""
        state = sequence.session
        assert state is not None
        count, known = sequence.num_computed, len(sequence.token_ids)
        if count > known:  # a step was given that computes a token nobody knows
            count = 0 if self._residence.has_slots else known
        if sequence.has_guessed:  # its record has read what was wrong
            count = 0
        self.rest(state, sequence.token_ids, 0 if sequence.error is not None else count)

    def resume(self, state: SessionState, token_ids: list[int], most: int) -> int:
        """Cuts what a session holds back to what a sequence of these tokens can go on from, at most
        their first `most`. Returns how many tokens that is."""
        if state not in self:
            return 0
        wanted = min(state.num_common(token_ids), most)
        kept = self._residence.cut(state.sequence_id, state.num_held, wanted)
        if kept:
            state.num_held = kept
        else:
            self.forget(state)
        return kept

    def wake(self, state: SessionState, sequence: Sequence | None = None) -> int:
        """Hands the places of a session to a sequence, or to steps that belong to none; returns how
        many tokens they hold."""
        self._states.pop(state.sequence_id, None)
        return state.take(sequence)

    def forget(self, state: SessionState) -> None:
        """Takes what a session holds."""
        if self._states.pop(state.sequence_id, None) is not None:
            self._residence.release(state.sequence_id)
            state.num_held = 0

    def forget_all(self) -> None:
        """Takes what all sessions hold, as after a step that failed: nothing is certain of it."""
        for state in [*self._states.values()]:
            self.forget(state)

    def give_up(self, but: SessionState | None = None) -> bool:
        """Takes what the session holds that has rested longest; False if there is no other."""
        victim = next((each for each in self._states.values() if each is not but), None)
        if victim is None:
            return False
        self.forget(victim)
        self.num_given_up += 1
        return True
