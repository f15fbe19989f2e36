"""`bench/sessions.py` in a short form."""

from __future__ import annotations

import random

import pytest

import ingot
from bench import sessions


def test_it_measures_turns_files_and_streams(shakespeare_artifact):
    args = sessions._parser().parse_args(
        [str(shakespeare_artifact), "--context", "40", "--streams", "2", "--rounds", "1"]
    )
    with ingot.LLM(shakespeare_artifact) as llm:
        figures = [*sessions.measure(llm, args)]
    assert [figure.name for figure in figures] == [
        "second turn behind 40 tokens", "save a session", "restore a session", "2 streams over one",
    ]  # fmt: skip
    assert all(figure.value > 0 for figure in figures)


def test_a_second_turn_that_answers_otherwise_is_an_error(shakespeare_artifact, monkeypatch):
    answers = iter([(1.0, "this"), (1.0, "that")])
    monkeypatch.setattr(sessions, "first_token", lambda *_: next(answers))
    with ingot.LLM(shakespeare_artifact) as llm, pytest.raises(RuntimeError, match="otherwise"):
        sessions.second_turn(llm, 40, 1, random.Random(0))
