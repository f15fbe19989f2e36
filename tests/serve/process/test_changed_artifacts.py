"""Artifacts that somebody writes to, cuts off, renames or removes while a server uses them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.runtime.fake_model import KERNELS, PLAN, WEIGHTS, greedy
from tests.serve.process.streams import Told, asked, body_of, streaming, told
from tests.support.serve_process import ServeProcess, serve_process

ENDLESS, LONG, SHORT = 8000, 60, 10  # tokens
MANIFEST, TOKENIZER = "manifest.json", "tokenizer/tokenizer.json"


@contextmanager
def served(artifact: Path, folder: Path) -> Iterator[tuple[ServeProcess, httpx.Client, Path]]:
    """A server of a copy of the artifact, which may be spoilt."""
    copy = Path(shutil.copytree(artifact, folder / "a.ingot"))
    with (
        serve_process(folder / "s", f"m={copy}", "--threads", "1") as server,
        server.client() as http,
    ):
        server.until(lambda other: other.get("/health").status_code == 200)
        yield server, http, copy


def answers(http: httpx.Client, number: int) -> None:
    assert asked(http, body_of("m", [number], SHORT)).tokens == greedy([number], SHORT)


def refused(answer: httpx.Response) -> str:
    """The code of a 503."""
    assert answer.status_code == 503, answer.text
    return str(answer.json()["error"]["code"])


def reload(http: httpx.Client) -> httpx.Response:
    return http.post("/models/reload", json={"model": "m"})


def opened(server: ServeProcess, path: Path) -> int:
    """How many descriptors of the front are of a file or folder."""
    links = Path(f"/proc/{server.pid}/fd").iterdir()
    return sum(os.path.realpath(link) == str(path.resolve()) for link in links)


def test_a_reload_leaves_nothing_of_the_old_artifact_open(fake_artifact, tmp_path):
    with served(fake_artifact, tmp_path) as (server, http, artifact):
        before = opened(server, artifact)
        for number in range(3):
            assert reload(http).status_code == 200
            answers(http, number)
        server.until(lambda _: opened(server, artifact) == before)
    assert before > 0


def write(path: Path, data: bytes, at: int) -> None:
    """Into the file itself, as `cp` writes to one that exists."""
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def without_leave(path: Path) -> None:
    for each in (*path.rglob("*"), path):
        each.chmod(0)
    path.chmod(0o700)


def replaced(path: Path) -> None:
    """By another file of the same name, as most programs do it."""
    other = path / "other"
    other.write_bytes(bytes(4096))
    other.rename(path / WEIGHTS)


HARMLESS: list[tuple[Callable[[Path], object], bool]] = [  # and whether it can be opened again
    (lambda path: (path / KERNELS).chmod(0o600), True),
    (without_leave, True),  # for root, which no permissions bind
    (lambda path: write(path / TOKENIZER, b"xxxx", 40), False),
    (lambda path: os.truncate(path / TOKENIZER, 0), False),
    (lambda path: write(path / PLAN, b"x", 40), False),
    (lambda path: write(path / KERNELS, bytes(64), 2000), False),
    (lambda path: os.truncate(path / KERNELS, 100), False),
    (lambda path: os.truncate(path / MANIFEST, 100), False),
    (replaced, False),
    (shutil.rmtree, False),
]


def test_a_model_goes_on_whatever_happens_to_the_files_that_it_has_read(
    dangerous_artifact: Path, tmp_path: Path
) -> None:
    with served(dangerous_artifact, tmp_path) as (server, http, path):
        pids = server.engines()
        for number, (spoil, opens) in enumerate(HARMLESS):
            body = body_of("m", [number], LONG)
            with streaming(http, [body], 1) as (stream,):
                spoil(path)
                assert stream.result() == Told(greedy([number], LONG), "length", None)
            answers(http, 100 + number)
            if not opens:
                assert refused(reload(http)) == "load_failed"
                answers(http, 200 + number)
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(dangerous_artifact, path)
        assert server.engines() == pids
        assert http.get("/health").status_code == 200
        assert server.end() == 0


def unused(path: Path) -> int:
    """Where a weight lies that no kernel reads, nor golden prompt shows."""
    return (path / WEIGHTS).stat().st_size - 8


HARMFUL: dict[str, Callable[[Path], object]] = {
    "nothing is left": lambda path: os.truncate(path / WEIGHTS, 0),
    "the header is left": lambda path: os.truncate(path / WEIGHTS, 70),
    "it has grown": lambda path: os.truncate(path / WEIGHTS, unused(path) + 4096),
    "all is zero": lambda path: write(path / WEIGHTS, bytes(unused(path)), 0),
    "a byte is another": lambda path: write(path / WEIGHTS, b"x", unused(path)),
}


def test_weights_that_are_written_to_end_the_model_and_nothing_else(
    dangerous_artifact: Path, fake_artifact: Path, tmp_path: Path
) -> None:
    """No token comes of other weights, and the server answers: until they are mended, with 503."""
    whole = (dangerous_artifact / WEIGHTS).read_bytes()
    with served(dangerous_artifact, tmp_path) as (server, http, path):
        for number, (what, spoil) in enumerate(HARMFUL.items()):
            bodies = [body_of("m", [number, i], ENDLESS) for i in range(3)]
            with streaming(http, bodies, len(bodies)) as streams:
                spoil(path)
                for i, stream in enumerate(streams):
                    found = stream.result()
                    assert found.error == "engine_dead", what
                    assert found.tokens == greedy([number, i], len(found.tokens)), what
            # It waits for the next engine, which does not open what is there.
            failed = http.post("/v1/completions", json=body_of("m", [1], 1))
            assert refused(failed) == "engine_dead" and WEIGHTS not in failed.text, what
            (model,) = http.get("/models").json()["data"]
            assert model["state"] == "failed" and WEIGHTS in model["error"], what
            assert http.get("/live").status_code == 200
            assert http.get("/health").status_code == 503
            assert refused(reload(http)) == "load_failed", what
            (path / WEIGHTS).write_bytes(whole)
            assert reload(http).status_code == 200
            answers(http, number)
        assert server.end() == 0


def test_weights_that_were_touched_are_read_again(dangerous_artifact: Path, tmp_path: Path) -> None:
    with served(dangerous_artifact, tmp_path) as (server, http, path):
        (pid,) = server.engines()
        os.utime(path / WEIGHTS)
        failed = http.post("/v1/completions", json=body_of("m", [1], 1))
        assert refused(failed) == "engine_dead" and failed.headers["retry-after"]
        answers(http, 1)
        assert server.engines() != [pid]


@pytest.mark.thorough
def test_another_model_goes_on_where_one_has_lost_its_weights(
    dangerous_artifact: Path, fake_artifact: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(dangerous_artifact, tmp_path / "a.ingot"))
    with (
        serve_process(tmp_path / "s", f"m={copy}", f"other={fake_artifact}") as server,
        server.client() as http,
    ):
        server.until(lambda other: other.get("/health").status_code == 200)
        with streaming(http, [body_of("m", [1], ENDLESS)], 1) as (stream,):
            os.truncate(copy / WEIGHTS, 0)
            assert stream.result().error == "engine_dead"
        assert told(http, body_of("other", [3], SHORT)).tokens == greedy([3], SHORT)
        server.until(lambda other: other.get("/health").json()["models"]["m"] == "failed")
        assert http.get("/health").status_code == 200
