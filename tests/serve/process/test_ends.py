"""How `ingot serve` ends when it is asked to, whatever it is doing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.runtime.fake_model import (
    DANGER,
    HANG_TOKEN,
    KERNELS,
    golden,
    greedy,
    kernels,
    write_fake,
)
from tests.serve.jobs import has_ended
from tests.serve.process.streams import Told, body_of, streaming
from tests.support.serve_process import ServeProcess, serve_process

pytestmark = pytest.mark.thorough

STREAMS, SEATS, PASSED_ON = 50, 6, 8  # PASSED_ON are given to the engine, which runs SEATS
ENDLESS, LONG = 8000, 60  # tokens


@contextmanager
def serving(tmp_path: Path, *options: str, code: int = 0) -> Iterator[ServeProcess]:
    """A server that has left nothing behind after the block."""
    temporary, cache = tmp_path / "tmp", tmp_path / "cache"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "INGOT_CACHE": str(cache)}
    memory = set(os.listdir("/dev/shm"))
    with serve_process(tmp_path / "s", *options, environment=environment) as server:
        yield server
        started = server.engines()
        assert server.wait() == code, server.said
    assert all(has_ended(pid) for pid in started)
    assert not (tmp_path / "s").exists()
    assert not [*temporary.iterdir()] and set(os.listdir("/dev/shm")) <= memory
    assert not [each for each in cache.rglob("*") if ".tmp" in each.name]
    assert "Traceback" not in server.said


@contextmanager
def halted(server: ServeProcess) -> Iterator[Callable[[], None]]:
    """Halts the engine until what it gives is called, so that requests get in line meanwhile."""
    server.until(lambda http: http.get("/health").status_code == 200)
    (engine,) = server.engines()
    os.kill(engine, signal.SIGSTOP)
    try:
        yield lambda: os.kill(engine, signal.SIGCONT)
    finally:
        with suppress(ProcessLookupError):
            os.kill(engine, signal.SIGCONT)


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_requests_under_way_are_answered_and_new_ones_refused(
    dangerous_artifact: Path, tmp_path: Path
) -> None:
    bodies = [body_of("m", [10 + i], LONG) for i in range(STREAMS)]
    with (
        serving(tmp_path, f"m={dangerous_artifact}") as server,
        server.client() as http,
        halted(server) as go_on,
        streaming(http, bodies, 0) as streams,
    ):
        server.until_in_line("m", running=PASSED_ON, waiting=STREAMS - PASSED_ON)
        server.signal(signal.SIGTERM)
        server.until(lambda other: other.get("/health").status_code != 200)
        go_on()
        assert http.get("/live").status_code == 200
        new = http.post("/v1/completions", json=body_of("m", [7], 1))
        assert refusal(new) == (503, "draining") and int(new.headers["retry-after"]) > 0
        for body, each in zip(bodies, streams, strict=True):
            assert each.result() == Told(greedy(body["prompt"], LONG), "length", None)


def test_requests_that_take_too_long_are_told(dangerous_artifact: Path, tmp_path: Path) -> None:
    bodies = [body_of("m", [10 + i], ENDLESS) for i in range(STREAMS)]
    options = f"m={dangerous_artifact}", "--shutdown-timeout", "0.3", "--max-queue-tokens", "0"
    with serving(tmp_path, *options) as server, server.client() as http:
        with streaming(http, bodies, SEATS) as streams:
            server.signal(signal.SIGTERM)
            found = [each.result() for each in streams]
        assert {each.error for each in found} == {"draining"}
        assert sum(bool(each.tokens) for each in found) >= SEATS


def test_a_second_signal_ends_at_once(dangerous_artifact: Path, tmp_path: Path) -> None:
    bodies = [body_of("m", [10 + i], ENDLESS) for i in range(SEATS)]
    code = 128 + signal.SIGTERM
    with (
        serving(tmp_path, f"m={dangerous_artifact}", code=code) as server,
        server.client() as http,
        streaming(http, bodies, SEATS) as streams,
    ):
        server.signal(signal.SIGTERM)
        server.until(lambda other: other.get("/health").status_code != 200)
        server.signal(signal.SIGTERM)
        for each in streams:
            assert each.exception() is not None or each.result().finish is None


def loads_for_ever(path: Path) -> Path:
    """An artifact whose golden outputs its kernels never compute."""
    wrong = json.loads(golden())
    wrong["prompts"][1]["positions"][0]["token"] = HANG_TOKEN  # the shorter one
    files = {KERNELS: kernels(*DANGER), "golden/golden.json": json.dumps(wrong).encode()}
    return write_fake(path, files=files)


def test_while_a_model_loads_and_is_waited_for(tmp_path: Path) -> None:
    path = loads_for_ever(tmp_path / "slow.ingot")
    options = f"m={path}", "--shutdown-timeout", "0.3"
    with serving(tmp_path, *options) as server, server.client() as http:
        (engine,) = server.engines()
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(http.post, "/v1/completions", json=body_of("m", [1], 1))
            server.until(lambda other: other.get("/health/details").json()["requests"] >= 2)
            server.signal(signal.SIGTERM)
            assert refusal(asked.result()) == (503, "draining")
        assert has_ended(engine)


def test_while_a_model_is_compiled(shakespeare_dir: Path, tmp_path: Path) -> None:
    with (
        serving(tmp_path, f"m={shakespeare_dir}") as server,
        server.client() as http,
        http.stream("GET", "/models/events") as stream,
    ):
        for line in stream.iter_lines():
            if "compiling" in line:
                break
        assert server.engines(), "the compile is a process of its own"
        server.signal(signal.SIGTERM)
