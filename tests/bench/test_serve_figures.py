"""The arithmetic of the server's measurements, and each of them once in a short form."""

from __future__ import annotations

import shutil
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from bench.growth import growth, slope
from bench.serve import __main__ as serve_main
from bench.serve import lives, overload, peer, sides
from bench.serve.peer import Peer, Round, Size, beside
from bench.serve.running import ingot_serve
from ingot.cli.load.http import Address
from ingot.cli.load.server import Server
from tests.support.fake_openai import Fake, completion, serve_fake


def test_ratios_are_those_of_rounds():
    pairs = [(Round(100, 0.1), Round(50, 0.2)), (Round(90, 0.1), Round(90, 0.1))]
    pairs.append((Round(30, 0.4), Round(10, 0.1)))
    rate, ttft, failed = peer._figures("llama.cpp", 8, pairs)
    assert (rate.name, rate.value) == ("8 clients, rate to llama.cpp", 2.0)
    assert rate.note == "ours 90, llama.cpp 50 tok/s"
    assert (ttft.value, ttft.note) == (1.0, "sooner; ours 100.0, llama.cpp 100.0 ms")
    assert failed.ok and failed.note == "ours 0, llama.cpp 0"


def test_requests_that_failed_are_a_figure_with_the_reason_of_most():
    pairs = [
        (Round(100, 0.1), Round(50, 0.2, ("HTTP 500: full", "the connection ended"))),
        (Round(100, 0.1, ("HTTP 500: full",)), Round(50, 0.2)),
    ]
    *_, failed = peer._figures("llama.cpp", 8, pairs)
    assert (failed.name, failed.value, failed.ok) == ("8 clients, requests that failed", 3, False)
    assert failed.note == "ours 1, llama.cpp 2; HTTP 500: full"


def asked_of(fake: Fake, clients: int) -> Round:
    server = Server(address=Address.of(fake.url), backend="openai", model="m")
    return peer._round(server, clients, 1, Size(prompt=4, answer=3))


def test_a_round_is_of_the_requests_that_were_answered():
    full = (500, {"error": {"message": "full"}})
    with serve_fake(Fake(answers=[completion("a", "b", "c"), full])) as fake:
        found = asked_of(fake, 2)
    assert found.errors == ("HTTP 500: full",) * 2 and found.rate > 0 and found.ttft > 0
    assert {(len(each["prompt"]), each["max_tokens"]) for each in fake.asked} == {(4, 3)}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((500, {"error": {"message": "full"}}), "answers no request: HTTP 500: full"),
        (completion("a", usage={"completion_tokens": 2}), "made 8 tokens of 12"),
    ],
)
def test_a_round_without_answers_or_with_short_ones_is_none(answer, reason):
    with serve_fake(Fake(answers=[answer])) as fake, pytest.raises(RuntimeError, match=reason):
        asked_of(fake, 2)


def test_a_peer_is_asked_as_the_options_say(tmp_path):
    options = ["--peer", "a=a {port}", "--clients", "3", "--tokens", "64", "16"]
    args = serve_main._parser().parse_args(["--artifact", str(tmp_path), *options])
    found = serve_main.chosen(args)["a"].keywords
    assert (found["clients"], found["size"]) == ([3], Size(prompt=64, answer=16))


def test_a_peer_is_a_command_with_a_port():
    found = Peer.of("a peer='a server' --port {port} --at http://h:{port}/x={port}")
    assert found.name == "a peer"
    assert found.command(80) == ["a server", "--port", "80", "--at", "http://h:80/x=80"]
    for text in ("server --port {port}", "=server --port {port}", "name=server --port 80"):
        with pytest.raises(ArgumentTypeError, match="is no NAME=COMMAND with"):
            Peer.of(text)


def test_the_front_adds_what_the_rounds_say(monkeypatch, tmp_path):
    monkeypatch.setattr(sides, "company", lambda *_: [(1.0, 1.1), (2.0, 2.6), (1.0, 1.0)])
    monkeypatch.setattr(sides, "first_token", lambda *_: iter(()))
    *_, more = sides.front(tmp_path, 3)
    assert more.value == pytest.approx(10.0) and more.ok
    *_, share = sides.rate(tmp_path, 3)
    assert share.value == pytest.approx(100 / 1.1) and share.ok
    monkeypatch.setattr(sides, "company", lambda *_: [(1.0, 1.2)])
    *_, more = sides.front(tmp_path, 1)
    *_, share = sides.rate(tmp_path, 1)
    assert not more.ok and not share.ok


def test_a_slope_is_of_a_minute():
    rises = [(60.0 + 2 * i, 100 + 0.05 * i) for i in range(100)]
    assert slope(rises) == pytest.approx(1.5)
    assert abs(slope([(2.0 * i, 100.0) for i in range(100)])) < 1e-6


def test_growth_is_judged_by_the_minute_or_where_there_is_less_in_all():
    creeps = [(60.0 + 2 * i, 100 + 0.02 * i) for i in range(270)]
    assert not growth("engine", creeps, short=False).ok
    assert growth("engine", creeps[:15], short=True).ok
    assert not growth("engine", [(15.0, 100.0), (30.0, 105.0)], short=True).ok


def test_loads_are_judged():
    answered = overload.Load(9.5, [0.1] * 100, [0.01] * 300, [])
    figures = [*overload._figures("load 4 x", 4, answered, 10.0)]
    assert all(figure.ok for figure in figures) and figures[2].value == pytest.approx(95.0)
    poor = overload.Load(5.0, [0.1], [0.2], ["HTTP 500"])
    assert [each.ok for each in overload._figures("load 4 x", 4, poor, 10.0)] == [
        True, False, False, False,
    ]  # fmt: skip
    assert len([*overload._figures("load 1 x", 1, answered, 10.0)]) == 2


@pytest.fixture
def short(monkeypatch) -> None:
    for module, name, value in (
        (sides, "ANSWER", 8), (sides, "SINGLES", 3), (lives, "STREAMS", 2),
        (overload, "SECONDS", 1.0), (overload, "SLOW", 4), (overload, "ANSWER", 8),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


@pytest.mark.slow
def test_each_measurement_runs(shakespeare_artifact, short, tmp_path):
    path = shakespeare_artifact
    other = Path(shutil.copytree(path, tmp_path / "other.ingot"))
    for found in (
        sides.front(path, 1), sides.rate(path, 1), lives.starts(path, 1),
        lives.kills(path, other, 1),
        overload.overload(path, 1), overload.neighbours(path, 1),
        beside(path, Peer("itself", ingot_serve([f"{sides.NAME}={path}"])), 1, (1, 2), Size(8, 8)),
    ):  # fmt: skip
        figures = [*found]
        assert figures and all(figure.value >= 0 or "adds" in figure.name for figure in figures)
