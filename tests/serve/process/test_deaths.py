"""Engines of `ingot serve` that are killed while they work."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.runtime.fake_model import greedy
from tests.serve.jobs import has_ended
from tests.serve.process.streams import Told, asked, body_of, streaming, told
from tests.support.core import core
from tests.support.serve_process import ServeProcess, serve_process

SEATS, PASSED_ON = 6, 8  # of the fake model, and how many are given to its engine
ENDLESS, LONG = 8000, 80  # tokens
GIVEN_UP = 5  # deaths, after which an engine is not started again


class Watched:
    """Asks for `/live` and `/health` again and again during the block."""

    def __init__(self, server: ServeProcess) -> None:
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.live: set[int] = set()
        self.states: set[str] = set()

    def _watch(self) -> None:
        with self._server.client() as http:
            while not self._ended.is_set():
                self.live.add(http.get("/live").status_code)
                self.live.add(http.get("/metrics").status_code)
                health = http.get("/health")
                self.live.add(health.status_code)  # the other model can serve
                self.states.add(health.json()["models"]["victim"])

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def killed(server: ServeProcess, http: httpx.Client, victim: Path, number: int) -> None:
    """Kills the victim's engine under load, and sees who notices.

    The load is another each time: what an engine died with is tried alone.
    """
    endless = [body_of("victim", [number, 20 + i], ENDLESS) for i in range(PASSED_ON)]
    lining = [body_of("victim", [number, 40 + i], LONG) for i in range(SEATS)]
    beside = [body_of("other", [number, 30 + i], LONG) for i in range(2 * SEATS)]
    # Two streams, so that they leave this process time for the others.
    with streaming(http, endless[:2], 2) as streams, ThreadPoolExecutor(40) as pool:
        whole = [pool.submit(asked, http, body) for body in endless[2:]]
        server.until_in_line("victim", running=PASSED_ON)
        waiting = [pool.submit(asked, http, body) for body in lining]
        server.until_in_line("victim", waiting=SEATS)
        living = [pool.submit(told, http, body) for body in beside]
        pid = server.engine_of(victim)
        os.kill(pid, signal.SIGKILL)
        assert {each.result().error for each in (*streams, *whole)} == {"engine_dead"}
        assert has_ended(pid)
        # Those that had no seat yet get theirs in the next engine.
        for body, each in zip([*lining, *beside], [*waiting, *living], strict=True):
            assert each.result() == Told(greedy(body["prompt"], LONG), "length", None)
    assert told(http, body_of("other", [3], 10)).tokens == greedy([3], 10)


@pytest.mark.thorough
@pytest.mark.parametrize("kills", core(2, further=(), slow=[GIVEN_UP - 1]))
def test_a_killed_engine_takes_its_requests_and_nothing_else(
    kills: int, dangerous_artifact: Path, fake_artifact: Path, tmp_path: Path
) -> None:
    models = f"victim={dangerous_artifact}", f"other={fake_artifact}"
    with serve_process(tmp_path / "s", *models) as server, server.client() as http:
        server.until(lambda http: http.get("/health").status_code == 200)  # has loaded both
        assert told(http, body_of("victim", [5], 10)).tokens == greedy([5], 10)
        for number in range(kills):
            with Watched(server) as watched:
                killed(server, http, dangerous_artifact, number)
                # It waits for the next engine, and is none of those that died with the last one.
                again = told(http, body_of("victim", [100 + number], 10))
            assert again.tokens == greedy([100 + number], 10)
            assert watched.live == {200}
            assert http.get("/health").json()["models"]["victim"] == "loaded"
            # The first engine is started again at once, and the next ones after a second or more.
            assert "loading" in watched.states or number == 0
        metrics = http.get("/metrics").text
        assert f'ingot_engine_restarts_total{{model_name="victim"}} {kills}.0' in metrics
        assert server.end() == 0


@pytest.mark.slow
def test_a_server_without_a_model_ends_with_an_error(
    dangerous_artifact: Path, tmp_path: Path
) -> None:
    models = (f"victim={dangerous_artifact}",)
    with serve_process(tmp_path / "s", *models) as server, server.client() as http:
        for number in range(GIVEN_UP):
            assert told(http, body_of("victim", [number], 4)).tokens == greedy([number], 4)
            # Its end says that the server knows of the death.
            with streaming(http, [body_of("victim", [number, 20], ENDLESS)], 1) as (stream,):
                os.kill(server.engine_of(dangerous_artifact), signal.SIGKILL)
                assert stream.result().error == "engine_dead"
        assert server.wait() != 0
        assert "died too often" in server.said and "Traceback" not in server.said
    assert not (tmp_path / "s").exists()


@pytest.mark.thorough
def test_a_request_that_killed_two_engines_is_refused_for_good(
    dangerous_artifact: Path, tmp_path: Path
) -> None:
    from tests.runtime.fake_model import CRASH_TOKEN

    body = body_of("m", [CRASH_TOKEN], 4)
    with (
        serve_process(tmp_path / "s", f"m={dangerous_artifact}") as server,
        server.client() as http,
    ):
        for _ in range(2):
            failed = http.post("/v1/completions", json=body)
            assert (failed.status_code, failed.json()["error"]["code"]) == (503, "engine_dead")
            assert failed.headers["x-should-retry"] == "true"
        refused = http.post("/v1/completions", json=body)
        assert refused.headers["x-should-retry"] == "false"
        assert 400 <= refused.status_code < 600 and "died twice" in refused.text
        assert told(http, body_of("m", [5], 10)).tokens == greedy([5], 10)
