"""A server that is made up: what it says depends on the last message."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "secret-key"
MODELS = [{"id": "first", "max_model_len": 30}, {"id": "second"}]


def _chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}], "usage": None}


def _said(*texts: str, reason: str = "stop") -> list[Any]:
    deltas = [{"role": "assistant", "content": ""}, *({"content": text} for text in texts)]
    return [*map(_chunk, deltas), _chunk({}, reason)]


SAYS: dict[str, list[Any]] = {
    "think": [
        _chunk({"reasoning": "Well", "reasoning_content": "Well"}),
        _chunk({"reasoning_content": " now"}),
        *_said("Yes."),
    ],
    "tags": _said("<th", "ink>\nHm</thi", "nk>\n\nYes."),
    "long": _said("x", reason="length"),
    "nothing": _said(),
    "fail": [*_said("Once ")[:-1], {"error": {"message": "the model died\nTry again."}}],
    "odd": [b": ping\n\n", b"event: x\n\n", b"data: [1]\n\n", b"data: {\n\n", *_said("Fine.")],
}


class FakeServer(ThreadingHTTPServer):
    """`asked` has the bodies of its requests; with `key` it wants one. An answer to `wait` goes on
    until its reader leaves, which sets `left`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict[str, Any]] = []
        self.key: str | None = None
        self.left = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self._is_let_in():
            self._json(200, {"object": "list", "data": MODELS})

    def do_POST(self) -> None:
        if not self._is_let_in():
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        text = body["messages"][-1]["content"]
        if text == "refuse":
            return self._json(400, {"error": {"message": "too many tokens\nSend fewer."}})
        if text == "busy":
            return self._json(429, {"error": {"message": "the queue is full"}})
        if text == "crash":
            return self._json(500, None)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        if text == "wait":
            return self._go_on()
        for event in SAYS.get(text, _said("Once ", "more")):
            self._event(event)
        if text != "fail" and text != "leave":
            usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
            self._event({"choices": [], "usage": usage})
            self._event("[DONE]")

    def _go_on(self) -> None:
        try:
            self._event(_chunk({"content": "Once "}))
            while True:
                self._event(b": ping\n\n")
        except OSError:
            self.server.left.set()

    def _event(self, event: Any) -> None:
        if not isinstance(event, bytes):
            data = event if isinstance(event, str) else json.dumps(event)
            event = f"data: {data}\n\n".encode()
        self.wfile.write(event)

    def _is_let_in(self) -> bool:
        key = self.server.key
        if key is None or self.headers["Authorization"] == f"Bearer {key}":
            return True
        self._json(401, {"error": {"message": "no valid key was given"}})
        return False

    def _json(self, status: int, value: Any) -> None:
        data = b"<html>" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    """A server on this machine, until the context ends."""
    with FakeServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
