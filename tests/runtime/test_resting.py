"""What resting sessions hold is theirs, and others get it when they need it."""

from __future__ import annotations

import pytest

from ingot.runtime.page_table import PageTable
from ingot.runtime.sequence import Sequence
from ingot.runtime.sessions.state import SessionState
from tests.runtime.session_world import SessionWorld
from tests.runtime.world import PARAMS

SHAPES = {
    "pages": {},
    "few pages": {"num_pages": 11},
    "windows": {"num_pages": 9, "window": 6},
    "slots": {"num_slots": 6},
    "few slots": {"num_slots": 4, "num_pages": 30},
}


def run(seed: int, shape: str, num_steps: int) -> SessionWorld:
    world = SessionWorld(seed, **{"num_pages": 24, **SHAPES[shape]})
    while world.num_steps < num_steps:
        world.run_random(200)
    world.finish()
    return world


@pytest.mark.parametrize("shape", SHAPES)
def test_sessions_find_their_own_tokens(shape: str) -> None:
    world = run(1, shape, 1500)
    assert world.num_resumed > 20 and world.scheduler.resting.num_given_up > 5


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2, 8))
@pytest.mark.parametrize("shape", SHAPES)
def test_many_sessions_find_their_own_tokens(shape: str, seed: int) -> None:
    world = run(seed, shape, 6000)
    assert world.num_resumed > 100 and world.scheduler.resting.num_given_up > 50


def test_the_world_sees_a_page_that_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a sequence that writes to known pages is found out."""
    monkeypatch.setattr(PageTable, "_is_own", lambda *_: True)
    with pytest.raises(Exception, match=r"holds another prefix|not written|lost"):
        run(1, "pages", 6000)


def session(*token_ids: int, num_drawn: int = 0) -> SessionState:
    state = SessionState(sequence_id=1, seed=0, key=0)
    state.become([*token_ids], num_drawn)
    state.begin()
    return state


def ended(state: SessionState, *drawn: int) -> Sequence:
    sequence = Sequence(1, [*state.token_ids], PARAMS, 99, session=state)
    sequence.token_ids += drawn
    state.end(sequence)
    return sequence


def test_the_last_token_stays_or_goes() -> None:
    state = session(1, 2)
    ended(state, 3, 4)
    assert (state.token_ids, state.num_drawn) == ([1, 2, 3, 4], 2)
    state.begin()
    state.keeps_last = False
    ended(state, 5)
    assert (state.token_ids, state.num_drawn) == ([1, 2, 3, 4], 2)
    state.begin()
    ended(state, 6)
    assert (state.token_ids, state.num_drawn) == ([1, 2, 3, 4, 6], 3), "the choice was for once"


def test_logits_go_with_the_tokens_that_they_follow() -> None:
    state = session(1, 2)
    state.logits = object()  # type: ignore[assignment]
    assert state.logits_after([1, 2]) is state.logits and state.logits_after([1]) is None
    state.become([1, 2])
    assert state.logits is not None
    state.become([1, 2, 3])
    assert state.logits is None
