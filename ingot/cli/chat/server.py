"""Speaks with a server that has OpenAI's interface."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

from ingot.errors import EngineDeadError, IngotError, QueueFullError, RequestError, UsageError

CONNECT_SECONDS = 10
SILENT_SECONDS = 600  # a server sends a comment now and then while a request waits
MAX_LINE = 16 << 20
MAX_BODY = 64 << 20
_EVENT = b"data:"
_END = "[DONE]"


class ChatServer:
    """A server at a URL such as `http://127.0.0.1:8000`, with `/v1` or without.

    Raises UsageError for an URL that is none, and for a server that refuses the key.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            self._port = parts.port
        except ValueError:  # brackets without an address, or a port that is none
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--url is {url!r:.80}", hint="Give one such as http://127.0.0.1:8000")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"

    def model(self, name: str | None) -> dict[str, Any]:
        """Finds a model of the server, by default its first. Raises UsageError if it has none."""
        models = self.call("GET", "/v1/models").get("data")
        known = [each for each in models or () if isinstance(each, dict) and "id" in each]
        if not known:
            raise UsageError(f"{self.url} has no models", hint="Give the URL of such a server.")
        found = next((each for each in known if name in (None, each["id"])), None)
        if found is None:
            names = ", ".join(str(each["id"]) for each in known)
            raise UsageError(f"{self.url} has no model {name!r}", hint=f"It has {names}.")
        return found

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns the server's answer, a JSON object; an empty one for anything else."""
        with self._answer(method, path, body) as response:
            told = _json(response.read(MAX_BODY))
        return told if isinstance(told, dict) else {}

    def events(self, path: str, body: Mapping[str, Any]) -> Generator[dict[str, Any], None, None]:
        """The events of a request's stream; leaving the loop ends the request."""
        with self._answer("POST", path, body) as response:
            while line := response.readline(MAX_LINE):
                data = line.removeprefix(_EVENT).strip().decode(errors="replace")
                if not line.startswith(_EVENT) or not data:
                    continue  # a comment, or the end of an event
                if data == _END:
                    return
                event = _json(data)
                if isinstance(event, dict) and "error" in event:
                    raise _refusal(0, event)
                if isinstance(event, dict):
                    yield event
        raise EngineDeadError("the server left before the answer was complete")

    @contextmanager
    def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_SECONDS)
        data = None if body is None else json.dumps(body).encode()
        with closing(connection), self._named():
            connection.connect()
            connection.sock.settimeout(SILENT_SECONDS)
            connection.request(method, quote(self._path + path), data, self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise _refusal(response.status, _json(response.read(MAX_BODY)))
            yield response

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Names the server in errors of the network."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            raise EngineDeadError(
                f"{self.url} cannot be reached: {error or type(error).__name__}",
                hint="`ingot serve MODEL` starts a server, and prints its URL.",
            ) from error


def _json(data: bytes | str) -> Any:
    """Decodes what a server sent; empty if it is no JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return {}


def _refusal(status: int, told: Any) -> IngotError:
    """The error that a server's answer stands for. Status 0: it came within a stream."""
    error = told.get("error") if isinstance(told, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    found, _, hint = str(message or f"the server answers with status {status}").partition("\n")
    if status in (401, 403):
        return UsageError(found, hint=hint or "Give the key with --api-key-file FILE.")
    if status == 429:
        return QueueFullError(found, hint=hint)
    if status == 0 or status >= 500:
        return EngineDeadError(found, hint=hint)
    return RequestError(found, hint=hint)
