"""Serves a GGUF file with a binary of llama.cpp's server, or of a fork of it."""

from __future__ import annotations

import atexit
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from loop import Generate, in_two_turns, serve

POLL_SECONDS = 0.05
READY_SECONDS = 600.0  # to read a model and repack its weights


def open_model(path: str, threads: int, context: int, streams: int) -> Generate:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    binary, *options = sys.argv[5:]
    folder = tempfile.TemporaryDirectory()  # where it writes a log
    process = subprocess.Popen(
        [binary, "--model", path, "--port", str(port), "--ctx-size", str(context * streams),
         "--batch-size", "512", "--ubatch-size", "512", "--parallel", str(streams),
         "--threads", str(threads), "--threads-batch", str(threads), *options],
        stdout=sys.stderr, cwd=folder.name,
    )  # fmt: skip
    atexit.register(process.kill)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    url = f"http://127.0.0.1:{port}"
    until = time.monotonic() + READY_SECONDS
    while not _is_ready(url):
        if process.poll() is not None:
            sys.exit("its server has ended")
        if time.monotonic() > until:
            sys.exit(f"its server is not ready after {READY_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)

    def answer(tokens: list[int], new_tokens: int) -> Any:
        body = {
            "prompt": tokens, "n_predict": new_tokens, "ignore_eos": True, "temperature": 0,
            "cache_prompt": False,
        }  # fmt: skip
        request = Request(f"{url}/completion", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urlopen(request) as response:
            return json.load(response)

    def alone(prompts: list[list[int]], new_tokens: int) -> list[float]:
        times = answer(prompts[0], new_tokens)["timings"]
        # It says how long it took, and not when each token came.
        later = times["predicted_ms"] / 1e3 / (new_tokens - 1)
        return [times["prompt_ms"] / 1e3] + [later] * (new_tokens - 1)

    clients = ThreadPoolExecutor(streams)

    def complete(prompts: list[list[int]], new_tokens: int) -> object:
        return list(clients.map(lambda tokens: answer(tokens, new_tokens), prompts))

    return alone if streams == 1 else in_two_turns(complete)


def _is_ready(url: str) -> bool:
    try:
        with urlopen(f"{url}/health", timeout=5):
            return True
    except (URLError, OSError):
        return False


if __name__ == "__main__":
    serve(open_model)
