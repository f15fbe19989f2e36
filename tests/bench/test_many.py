"""`bench/many.py` in a short form, and with a server that gives nothing back."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, repeat

from bench import many
from bench.serve import held
from bench.serve.held import Held

REQUESTS = 300


def test_requests_leave_nothing_behind(shakespeare_artifact):
    figures = {figure.name: figure for figure in many.many(shakespeare_artifact, REQUESTS)}
    assert figures["requests"].value == REQUESTS
    assert [name for name, figure in figures.items() if not figure.ok] == []
    assert {"errors", "answers that differ", "num requests running", "memory, more"} <= {*figures}


def test_what_is_left_behind_fails(shakespeare_artifact, monkeypatch):
    memory = iter([100.0, 100.0, 160.0, 160.0])  # front and engine, first and last
    monkeypatch.setattr(many, "rss_mb", lambda pid: next(memory))
    monkeypatch.setattr(held, "num_fds", lambda pid: next(files))
    monkeypatch.setattr(held, "QUIET_SECONDS", 0.6)
    files = chain([10, 10], repeat(11))
    figures = [*many.many(shakespeare_artifact, 5)]
    failed = [figure.name for figure in figures if not figure.ok]
    assert failed == [
        "open files of the front, more", "open files of the engine, more", "memory, more",
    ]  # fmt: skip


async def _left(*_: object) -> list[float]:
    return [1.0, 0.0, 0.5]


def test_requests_and_pages_that_are_left_fail(monkeypatch):
    monkeypatch.setattr(Held, "idle", _left)
    found = Held.gauges(Held(None, None), "afterwards")
    assert [figure.ok for figure in found] == [False, True, False]


def test_answers_that_change_are_counted(monkeypatch, shakespeare_artifact):
    asked = many.asks
    monkeypatch.setattr(many, "PROMPTS", 1)
    monkeypatch.setattr(many, "asks", lambda seed, count, *sizes: Changing(asked(seed, 1, *sizes)))
    figures = {figure.name: figure for figure in many.many(shakespeare_artifact, 40)}
    assert figures["answers that differ"].value > 0


class Changing(list):
    """Prompts that are others each time that one is taken."""

    def __getitem__(self, index):
        (ask,) = self
        self[:] = [replace(ask, prompt=[*ask.prompt[1:], ask.prompt[0]])]
        return ask
