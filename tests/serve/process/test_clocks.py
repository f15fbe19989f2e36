"""A server whose system clock is set, set back or stands still while requests run."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import pytest

from ingot.serve.grpc.stubs import ingot_v1_pb2 as v1
from ingot.serve.grpc.stubs import ingot_v1_pb2_grpc
from tests.runtime.fake_model import greedy
from tests.serve.process.streams import Told, asked, body_of, streaming, told
from tests.support.made_once import made_once
from tests.support.serve_process import ServeProcess, serve_process

SOURCE = Path(__file__).with_name("clock") / "fake_clock.c"
HOUR = 3600.0
ENDLESS, LONG = 8000, 60  # tokens
SEATS, PASSED_ON = 6, 8  # of the fake model, and how many are given to its engine


class Clock:
    """The clock of a server: by how many seconds it is wrong, and where it stands still."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.touch()
        self.set()

    def set(self, seconds: float = 0.0, frozen: float = 0.0) -> None:
        with open(self._file, "r+b") as file:
            file.write(struct.pack("<2q", int(seconds * 1e9), int(frozen * 1e9)))

    def changes(self) -> Iterator[None]:
        """Each turn it is set, forth and back, or stands still."""
        while True:
            for seconds in (HOUR, -HOUR, HOUR / 2, 0.0):
                self.set(seconds)
                yield
            for frozen in (time.time() + HOUR, time.time() - HOUR):
                self.set(frozen=frozen)
                yield


def compiled(folder: Path) -> None:
    library = folder / "fake_clock.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", SOURCE, "-o", library, "-ldl"], check=True)


@contextmanager
def served(artifact: Path, folder: Path, *options: str) -> Iterator[tuple[ServeProcess, Clock]]:
    library = made_once("fake-clock", compiled) / "fake_clock.so"
    clock = Clock(folder / "clock")
    environment = {**os.environ, "LD_PRELOAD": str(library), "FAKE_CLOCK": str(folder / "clock")}
    with serve_process(folder / "s", f"m={artifact}", *options, environment=environment) as server:
        server.until(lambda http: http.get("/health").status_code == 200)
        for pid in (server.pid, *server.engines()):
            assert "fake_clock.so" in Path(f"/proc/{pid}/maps").read_text()
        yield server, clock


def samples(http: httpx.Client) -> dict[str, float]:
    """The metrics whose values do not depend on the date."""
    lines = (line for line in http.get("/metrics").text.splitlines() if line[:1] != "#")
    found = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
    return {name: v for name, v in found.items() if not re.search("_created|start_time", name)}


def told_by_grpc(server: ServeProcess, prompt: list[int]) -> list[int]:
    port = re.search(r"grpc_port\D+(\d+)", server.said)
    assert port, server.said
    with grpc.insecure_channel(f"127.0.0.1:{port[1]}") as channel:
        params = v1.SamplingParams(temperature=0.0, max_tokens=LONG, ignore_eos=True)
        tokens = v1.TokenIds(ids=prompt)
        given = v1.GenerateRequest(model="m", token_ids=tokens, params=params)
        stub = ingot_v1_pb2_grpc.InferenceStub(channel)
        parts = list(stub.GenerateStream(given, timeout=60))
    return [token for part in parts for token in part.completions[0].token_ids]


def test_nothing_but_dates_depends_on_the_clock(dangerous_artifact: Path, tmp_path: Path) -> None:
    """The clock changes again and again while requests run and wait in line."""
    options = "--grpc-port", "0", "--host", "127.0.0.1"
    with (
        served(dangerous_artifact, tmp_path, *options) as (server, clock),
        server.client() as http,
        ThreadPoolExecutor(40) as pool,
    ):
        changes, engines = clock.changes(), server.engines()
        bodies = [body_of("m", [10 + i], LONG) for i in range(3 * PASSED_ON)]
        with streaming(http, [body_of("m", [9], LONG)], 1) as (first,):
            beside = [
                pool.submit((asked, told)[i % 2], http, each) for i, each in enumerate(bodies)
            ]
            by_grpc = pool.submit(told_by_grpc, server, [7])
            while not all(each.done() for each in (first, by_grpc, *beside)):
                next(changes)
        for body, each in zip([body_of("m", [9], LONG), *bodies], [first, *beside], strict=True):
            assert each.result() == Told(greedy(body["prompt"], LONG), "length", None)
        assert by_grpc.result() == greedy([7], LONG)
        found = samples(http)
        assert found and min(found.values()) >= 0
        taken = [value for name, value in found.items() if re.search("_seconds(_sum)?({|$)", name)]
        assert taken and max(taken) < HOUR / 4
        assert server.engines() == engines
        assert min(map(float, re.findall(r"ms=(\S+)", server.said))) >= 0
        clock.set(-HOUR)
        assert server.end() == 0


def test_a_server_sees_the_clock_that_a_test_sets(fake_artifact: Path, tmp_path: Path) -> None:
    with served(fake_artifact, tmp_path) as (server, clock), server.client() as http:
        for seconds in (HOUR, -HOUR):
            clock.set(seconds)
            answer = http.post("/v1/completions", json=body_of("m", [1], 1)).json()
            assert abs(answer["created"] - time.time() - seconds) < HOUR / 4
        clock.set(frozen=1e9)
        answers = [http.post("/v1/completions", json=body_of("m", [1], 1)) for _ in range(2)]
        assert [each.json()["created"] for each in answers] == [10**9, 10**9]
        assert all("2001-09-09T01:46:40.000Z" in line for line in server.lines[-1:])


@pytest.mark.thorough
def test_time_passes_for_requests_while_the_clock_stands_still(
    dangerous_artifact: Path, tmp_path: Path
) -> None:
    options = "--queue-timeout", "0.5", "--request-timeout", "5"
    with (
        served(dangerous_artifact, tmp_path, *options) as (server, clock),
        server.client() as http,
    ):
        clock.set(frozen=time.time())
        endless = [body_of("m", [10 + i], ENDLESS) for i in range(PASSED_ON)]
        with streaming(http, endless, SEATS) as streams:
            waits = http.post("/v1/completions", json=body_of("m", [9], 1))
            assert (waits.status_code, waits.json()["error"]["code"]) == (429, "queue_timeout")
            assert 0 < int(waits.headers["retry-after"]) < HOUR / 4
            clock.set(-HOUR)
            ends = {each.result().error for each in streams}
        assert ends == {"request_timeout"}
