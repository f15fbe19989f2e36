"""Where `ingot serve` is started: without a network, a home, or leave to write, and with little."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ROOT
from tests.runtime.fake_model import greedy
from tests.serve.process.streams import body_of, told
from tests.support.serve_process import ServeProcess, serve_process

pytestmark = pytest.mark.thorough

AUDITED = Path(__file__).with_name("audited")
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
MESSAGES = [{"role": "user", "content": "Hi"}]
# Who may compile and run code: imports, classes that Python writes, and templates of chats, which
# run in a sandbox.
MAY_RUN_CODE = (
    "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>", "<frozen runpy>",
    "/dataclasses.py", "/collections/__init__.py", "/typing.py", "/anyio/_lazyimport.py",
    "/prometheus_client/decorator.py", "/jinja2/environment.py", "/enum.py",
)  # fmt: skip
CODE = {"exec", "compile", "marshal.loads"}


def use(http: httpx.Client) -> None:
    """Asks for something of every kind."""
    for path, body in {
        "/v1/completions": {"prompt": "x", "max_tokens": 4, "logprobs": 1, "echo": True},
        "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 300, "tools": TOOLS,
                                 "tool_choice": "required"},
        "/tokenize": {"prompt": "x"},
    }.items():  # fmt: skip
        answer = http.post(path, json=body)
        assert answer.status_code == 200, answer.text
    wrong = http.post("/v1/completions", json={"prompt": "x", "max_tokens": -1})
    assert wrong.status_code == 400
    for path in ("/", "/metrics", "/v1/models", "/models", "/health", "/openapi.json", "/version"):
        assert http.get(path).status_code == 200


def audited(log: Path) -> list[list[str]]:
    return [line.split("\t") for line in log.read_text().splitlines()]


@contextmanager
def auditing(tmp_path: Path, *options: str, code: str = "") -> Iterator[tuple[ServeProcess, Path]]:
    """A server whose processes note what they do; `code` is run at their start."""
    log, hooks = tmp_path / "log", tmp_path / "hooks"
    hooks.mkdir()
    hook = (AUDITED / "sitecustomize.py").read_text()
    (hooks / "sitecustomize.py").write_text(f"{hook}\n{code}\n")
    environment = {**os.environ, "PYTHONPATH": f"{hooks}:{ROOT}", "AUDIT_LOG": str(log)}
    with serve_process(tmp_path / "s", *options, environment=environment) as server:
        yield server, log


def forbidden(found: list[list[str]]) -> list[list[str]]:
    """What of it a server must not do."""
    return [each for each in found if not _may(*each)]


def _may(event: str, file: str, function: str, about: str) -> bool:
    if event in CODE:
        return file.endswith(MAY_RUN_CODE)
    if event == "subprocess.Popen":
        return file.endswith("/subprocess.py") and about == sys.executable
    if event == "open":
        return about == "/dev/null" or about.startswith("/proc/self/") or about.isdigit()
    if event == "ctypes.dlopen":  # the C library, and the kernels by the file that was hashed
        return about == "None" or about.startswith("/proc/self/./fd/")
    # Its own socket.
    return event == "os.remove" and about.endswith("/s")


def test_a_server_runs_no_code_but_its_own_and_writes_nothing(
    shakespeare_artifact: Path, tmp_path: Path
) -> None:
    with auditing(tmp_path, f"m={shakespeare_artifact}") as (server, log), server.client() as http:
        use(http)
        http.post("/models/reload", json={"model": "m"})
        use(http)
        assert server.end() == 0
    found = audited(log)
    assert {"exec", "subprocess.Popen", "ctypes.dlopen"} <= {each[0] for each in found}
    assert forbidden(found) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle; pickle.loads(pickle.dumps(os.getcwd))",
        "exec('1')",
        "open('written', 'w')",
        "import socket; socket.socket(type=socket.SOCK_DGRAM).connect(('127.0.0.1', 9))",
        "import subprocess; subprocess.run(['/bin/true'])",
    ],
)
def test_what_a_server_must_not_do_is_seen(code: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "sitecustomize.py").write_text((AUDITED / "sitecustomize.py").read_text())
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "AUDIT_LOG": str(log)}
    script = tmp_path / "script.py"
    script.write_text(f"import os\n{code}\n")
    subprocess.run([sys.executable, script], env=environment, cwd=tmp_path, check=True)
    assert forbidden(audited(log))


def test_nothing_outside_is_needed(shakespeare_artifact: Path, tmp_path: Path) -> None:
    """In a network of its own that has no interface, where this user may make one."""
    alone = ["unshare", "--map-root-user", "--net"]
    within = alone if subprocess.run([*alone, "true"]).returncode == 0 else []
    options = f"m={shakespeare_artifact}", "--threads", "1"
    with (
        serve_process(tmp_path / "s", *options, within=within) as server,
        server.client() as http,
    ):
        use(http)


LEAST: dict[str, Any] = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}


def test_no_home_and_no_folder_to_write_to(fake_artifact: Path, tmp_path: Path) -> None:
    environment = {**LEAST, "TMPDIR": "/proc/nowhere", "HOME": "/proc/nowhere"}
    with (
        serve_process(tmp_path / "s", f"m={fake_artifact}", environment=environment) as server,
        server.client() as http,
    ):
        assert told(http, body_of("m", [5], 10)).tokens == greedy([5], 10)


def test_an_empty_environment(fake_artifact: Path, tmp_path: Path) -> None:
    with (
        serve_process(tmp_path / "s", f"m={fake_artifact}", environment=LEAST) as server,
        server.client() as http,
    ):
        assert told(http, body_of("m", [5], 10)).tokens == greedy([5], 10)


def limited(kind: str, most: int) -> list[str]:
    """A command that runs another within a limit."""
    return ["prlimit", f"--{kind}={most}:{most}"]


def test_few_open_files(fake_artifact: Path, tmp_path: Path) -> None:
    """64 are enough to serve; clients beyond them wait, and nothing breaks."""
    with (
        serve_process(tmp_path / "s", f"m={fake_artifact}", within=limited("nofile", 64)) as server,
        server.client() as http,
    ):
        assert told(http, body_of("m", [5], 10)).tokens == greedy([5], 10)
        held = [socket.socket(socket.AF_UNIX) for _ in range(100)]
        for connection in held:
            connection.connect(str(server.socket))
        for connection in held:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: s\r\n\r\n")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
            connection.close()
        assert told(http, body_of("m", [6], 10)).tokens == greedy([6], 10)
        assert "Traceback" not in server.said
        assert server.end() == 0


def test_limits_hold_for_what_they_run() -> None:
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    done = subprocess.run(
        [*limited("nofile", 64), sys.executable, "-c", code], capture_output=True, text=True
    )
    assert done.stdout.strip() == "(64, 64)" != str(resource.getrlimit(resource.RLIMIT_NOFILE))
