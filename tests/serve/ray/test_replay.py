"""A request that was computed twice is told once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.errors import EngineDeadError
from ingot.serve.engine import Job, Piece, Progress
from ingot.serve.ray.replay import Replay, seeded

PROMPT_SCORES = [None, [(1, -0.5, 1, "a")]]


def told(cuts: list[int], texts: dict[int, str], *, finish: bool = True) -> list[Progress]:
    """Progress whose tokens are the characters of texts, cut at some places."""
    end = max(map(len, texts.values()))
    edges = [0, *sorted({cut for cut in cuts if cut < end}), end]
    steps = []
    for number, (a, b) in enumerate(itertools.pairwise(edges)):
        pieces = [
            Piece(
                index,
                text[a:b],
                [*map(ord, text[a:b])],
                [[(ord(c), -1.0, 1, c)] for c in text[a:b]],
                "stop" if finish and b >= len(text) > a else None,
            )
            for index, text in texts.items()
            if a < len(text)
        ]
        last = finish and b == edges[-1]
        scores = PROMPT_SCORES if number == 0 else None
        steps.append(Progress(pieces, last, 5 if number == 0 else 0, scores))
    return steps


def read(parts: list[Progress]) -> dict[int, tuple]:
    found: dict[int, tuple] = {}
    for part in parts:
        for piece in part.pieces:
            text, ids, scores, reasons = found.get(piece.index, ("", (), (), ()))
            reason = (piece.finish_reason,) if piece.finish_reason else ()
            found[piece.index] = (
                text + piece.text,
                ids + tuple(piece.token_ids),
                scores + tuple(s[0] for s in piece.logprobs or ()),
                reasons + reason,
            )
    return found


places = st.lists(st.integers(1, 30), max_size=5)


@given(
    st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20), places, places, st.data()
)
def test_a_reader_gets_each_token_once_however_often_it_is_computed(a, b, first, second, data):
    texts = {0: a, 1: b}
    before = told(first, texts)
    lost = before[: data.draw(st.integers(0, len(before) - 1))]
    replay = Replay()
    got = [new for part in lost if (new := replay.new(part)) is not None]
    replay.again()
    got += [new for part in told(second, texts) if (new := replay.new(part)) is not None]
    assert read(got) == read(before)
    assert [part.finished for part in got] == [False] * (len(got) - 1) + [True]
    assert [part.num_cached_tokens for part in got] == [5] + [0] * (len(got) - 1)
    assert [part.prompt_logprobs for part in got] == [PROMPT_SCORES] + [None] * (len(got) - 1)


def test_another_continuation_ends_the_request():
    replay = Replay()
    replay.new(told([], {0: "abc"}, finish=False)[0])
    replay.again()
    with pytest.raises(EngineDeadError, match="continued differently"):
        replay.new(told([], {0: "abd"})[0])


def test_text_that_differs_is_found_too():
    replay = Replay()
    replay.new(Progress([Piece(0, "ab", [1, 2])]))
    replay.again()
    with pytest.raises(EngineDeadError):
        replay.new(Progress([Piece(0, "ax", [1, 2])]))


def test_a_job_that_draws_has_a_seed_by_its_id_unless_it_brings_one():
    drawn = [seeded(Job(id=name, token_ids=[1])).params["seed"] for name in ("a", "b", "a")]
    assert drawn[0] == drawn[2] != drawn[1] and all(0 <= seed < 2**63 for seed in drawn)
    for params in ({"seed": 0}, {"seed": 7}, {"temperature": 0}):
        asked = Job(id="a", token_ids=[1], params=params)
        assert seeded(asked) == asked
