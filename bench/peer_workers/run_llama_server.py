"""Serves a GGUF file with a binary of llama.cpp's server, or of a fork of it."""

from __future__ import annotations

import atexit
import json
import signal
import socket
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import Request, urlopen

from loop import Generate, serve

POLL_SECONDS = 0.05


def open_model(path: str, threads: int, context: int) -> Generate:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    binary, *options = sys.argv[4:]
    process = subprocess.Popen(
        [binary, "--model", path, "--port", str(port), "--ctx-size", str(context),
         "--batch-size", "512", "--ubatch-size", "512", "--parallel", "1",
         "--threads", str(threads), "--threads-batch", str(threads), *options],
        stdout=sys.stderr,
    )  # fmt: skip
    atexit.register(process.kill)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    url = f"http://127.0.0.1:{port}"
    while not _is_ready(url):
        if process.poll() is not None:
            sys.exit("its server has ended")
        time.sleep(POLL_SECONDS)

    def generate(tokens: list[int], new_tokens: int) -> list[float]:
        body = {
            "prompt": tokens, "n_predict": new_tokens, "ignore_eos": True, "temperature": 0,
            "cache_prompt": False,
        }  # fmt: skip
        request = Request(f"{url}/completion", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urlopen(request) as answer:
            times = json.load(answer)["timings"]
        # It says how long it took, and not when each token came.
        later = times["predicted_ms"] / 1e3 / (new_tokens - 1)
        return [times["prompt_ms"] / 1e3] + [later] * (new_tokens - 1)

    return generate


def _is_ready(url: str) -> bool:
    try:
        with urlopen(f"{url}/health", timeout=5):
            return True
    except (URLError, OSError):
        return False


if __name__ == "__main__":
    serve(open_model)
