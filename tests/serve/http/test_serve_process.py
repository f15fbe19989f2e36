"""`ingot serve` as a process, from its start to its end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingot.runtime.llm import LLM

pytestmark = pytest.mark.thorough


@contextmanager
def serving(socket: Path, artifact: Path) -> Iterator[subprocess.Popen[str]]:
    """A server of two models, one of which cannot be loaded, with engines of their own."""
    command = [sys.executable, "-m", "ingot", "serve", f"bard={artifact}"]
    options = ["broken=no-such.ingot", "--uds", str(socket), "--threads", "1"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if "listening" in line:
                    break
            yield process
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serve") / "s"


@pytest.fixture(scope="module")
def server(socket: Path, shakespeare_artifact: Path) -> Iterator[subprocess.Popen[str]]:
    with serving(socket, shakespeare_artifact) as process:
        yield process


@pytest.fixture(scope="module")
def http(server: subprocess.Popen[str], socket: Path) -> Iterator[httpx.Client]:
    transport = httpx.HTTPTransport(uds=str(socket))
    with httpx.Client(transport=transport, base_url="http://server", timeout=60) as client:
        yield client


def complete(http: httpx.Client, **fields: Any) -> Any:
    answer = http.post(
        "/v1/completions", json={"model": "bard", "prompt": "ROMEO:", "max_tokens": 8, **fields}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_an_answer_is_that_of_llm(http: httpx.Client, shakespeare_artifact: Path) -> None:
    text = complete(http, seed=5)["choices"][0]["text"]
    with LLM(shakespeare_artifact, num_threads=1) as llm:
        params = llm.get_default_sampling_params()
        params.seed, params.max_tokens = 5, 8
        (output,) = llm.generate(["ROMEO:"], params)
    assert text == output.outputs[0].text


def test_serving_imports_no_torch(http: httpx.Client, server: subprocess.Popen[str]) -> None:
    complete(http)
    while len(engines := children(server.pid)) > 1:  # the other model is still looked for
        assert http.get("/live").status_code == 200
    front, engine = (Path(f"/proc/{pid}/maps").read_text() for pid in (server.pid, *engines))
    assert "numpy" in engine, "this would see a package"
    assert "torch" not in engine
    assert "numpy" not in front, "it takes a fifth of the time of a start"
    assert "torch" not in front


def test_a_broken_model_disturbs_no_other(http: httpx.Client) -> None:
    broken = http.post("/v1/completions", json={"model": "broken", "prompt": "x"})
    error = broken.json()["error"]
    assert (broken.status_code, error["type"]) == (503, "service_unavailable")
    assert "no-such" not in broken.text
    assert complete(http)["choices"]
    health = http.get("/health")
    assert (health.status_code, health.json()["status"]) == (200, "degraded")
    assert http.get("/health", params={"model": "broken"}).status_code == 503
    assert health.json()["models"].items() >= {"bard": "loaded", "broken": "failed"}.items()


def test_models_are_unloaded_loaded_and_replaced(
    http: httpx.Client, shakespeare_artifact: Path
) -> None:
    def state() -> str:
        found: dict[str, Any] = http.get("/models").json()["data"][0]
        assert found["name"] == "bard"
        return str(found["state"])

    assert complete(http)["choices"] and state() == "loaded"
    answer = http.post("/models/unload", json={"model": "bard"})
    assert answer.json()["model"]["state"] == state() == "unloaded"
    assert complete(http)["choices"] and state() == "loaded"
    answer = http.post("/models/reload", json={"model": "bard", "settings": {"context": 64}})
    assert answer.status_code == 200
    too_long = http.post("/v1/completions", json={"model": "bard", "prompt": [5] * 64})
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
    source = str(shakespeare_artifact)
    loading = {
        "model": "other",
        "source": source,
        "aliases": ["another"],
        "settings": {"threads": 1},
    }
    assert http.post("/models/load", json=loading).json()["model"]["state"] == "loaded"
    assert complete(http, model="another")["model"] == "another"
    ids = [card["id"] for card in http.get("/v1/models").json()["data"]]
    assert ids == ["bard", "broken", "other", "another"]
    assert http.post("/models/unload", json={"model": "other"}).status_code == 200
    assert http.post("/models/load", json={"model": "nobody"}).status_code == 404
    wrong = http.post("/models/load", json={"model": "x", "settings": {"threads": "many"}})
    assert wrong.json()["error"]["param"] == "settings.threads"


def test_what_happens_to_models_is_streamed(http: httpx.Client) -> None:
    with http.stream("GET", "/models/events") as stream:
        lines = stream.iter_lines()
        next(lines)
        http.post("/models/load", json={"model": "bard"})
        http.post("/models/unload", json={"model": "bard"})
        events = (json.loads(line[6:]) for line in lines if line.startswith("data: "))
        assert any((event["name"], event["state"]) == ("bard", "unloading") for event in events)


def test_it_ends_in_order(shakespeare_artifact: Path, tmp_path: Path) -> None:
    socket = tmp_path / "s"
    with serving(socket, shakespeare_artifact) as server:
        engines = children(server.pid)
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    assert not socket.exists()
    assert engines and not any(Path(f"/proc/{pid}").exists() for pid in engines)


def test_where_no_model_can_be_loaded_it_ends_with_the_reason(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "ingot",
        "serve",
        "no-such.ingot",
        "--uds",
        str(tmp_path / "s"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3
    assert "error: " in done.stderr and "Traceback" not in done.stderr
