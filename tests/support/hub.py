"""A server on this machine that speaks as much of the hub's API as downloads need."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_good"
LARGE = (".safetensors", ".bin", ".gguf")  # kept as Git LFS files, behind a redirect


@dataclass
class Repo:
    """A model on the server: its files by name, and who may have them."""

    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    revisions: tuple[str, ...] = ("main",)

    @property
    def commit(self) -> str:
        """Changes with the content, as that of Git does."""
        parts = (f"{name}:{blob_id(data)}" for name, data in sorted(self.files.items()))
        return hashlib.sha1("\n".join(parts).encode()).hexdigest()


@dataclass
class Hub:
    """The state of the server, which tests set and read.

    Attributes:
        repos: the models by name.
        url: where it listens, and `cdn`, the host that large files come from.
        requests: what was asked for: method, path, Range header or "".
        cut_after: end the next transfer of a large file after so many bytes.
        damage: send another first byte of large files.
        status: answer everything with this error; 0: nothing is wrong.
        lists: whether it lists the files of a commit; if not, it says that this is forbidden.
    """

    repos: dict[str, Repo] = field(default_factory=dict)
    url: str = ""
    cdn: str = ""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    cut_after: int | None = None
    damage: bool = False
    status: int = 0
    lists: bool = True

    def add(self, name: str, folder: Path, **options: Any) -> Repo:
        """Serves the files of a folder."""
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        self.repos[name] = Repo(files, **options)
        return self.repos[name]

    def sent(self, suffix: str) -> list[str]:
        """The Range headers of the requests for the content of such files."""
        return [r for method, path, r in self.requests if method == "GET" and path.endswith(suffix)]


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """A server that runs until the end of the block."""
    hub = Hub()
    with _serving("127.0.0.1", hub) as hub.url, _serving("127.0.0.2", hub) as hub.cdn:
        yield hub


@contextmanager
def _serving(host: str, hub: Hub) -> Iterator[str]:
    server = ThreadingHTTPServer((host, 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def blob_id(data: bytes) -> str:
    """What Git calls a file of that content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self) -> None:
        split = urlsplit(self.path)
        path, query = split.path, parse_qs(split.query)
        self.hub.requests.append((self.command, unquote(path), self.headers.get("Range", "")))
        if self.hub.status:
            return self._send(self.hub.status)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            return self._model(found[1], unquote(found[2] or "main"), "blobs" in query)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)/?", path):
            return self._tree(found[1], found[2])
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._file(found[1], unquote(found[2]), unquote(found[3]))
        if found := re.fullmatch(r"/cdn/([0-9a-f]{64})/(.+)", path):
            return self._content(found[1])
        return self._send(404)

    def _repo(self, name: str, revision: str) -> Repo | None:
        """The repository, or None after an answer that says why not."""
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and not self._knows_token()):
            # The hub does not tell those without a token what exists.
            status = 404 if self._knows_token() else 401
            self._send(status, {"X-Error-Code": "RepoNotFound"})
            return None
        if revision not in (*repo.revisions, repo.commit):
            self._send(404, {"X-Error-Code": "RevisionNotFound"})
            return None
        return repo

    def _knows_token(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _model(self, name: str, revision: str, blobs: bool) -> None:
        repo = self._repo(name, revision)
        if repo is None:
            return
        siblings: list[dict[str, Any]] = []
        for file, data in repo.files.items():
            one: dict[str, Any] = {"rfilename": file}
            if blobs:
                one |= {"size": len(data), "blobId": blob_id(data)}
                if file.endswith(LARGE):
                    one["lfs"] = {"sha256": _sha256(data), "size": len(data), "pointerSize": 134}
            siblings.append(one)
        self._json({"id": name, "modelId": name, "sha": repo.commit, "siblings": siblings})

    def _tree(self, name: str, revision: str) -> None:
        repo = self._repo(name, revision)
        if repo is None:
            return
        if not self.hub.lists:
            return self._send(403)  # the client would ask again after a 500
        found: list[dict[str, Any]] = []
        for file, data in repo.files.items():
            one: dict[str, Any] = {"type": "file", "path": file}
            one |= {"size": len(data), "oid": blob_id(data)}
            if file.endswith(LARGE):
                one["lfs"] = {"oid": _sha256(data), "size": len(data), "pointerSize": 134}
            found.append(one)
        self._json(found)

    def _file(self, name: str, revision: str, file: str) -> None:
        repo = self._repo(name, revision)
        if repo is None:
            return
        headers = {"X-Repo-Commit": repo.commit}
        if repo.gated and not self._knows_token():
            status = 403 if self.headers.get("Authorization") else 401
            return self._send(status, headers | {"X-Error-Code": "GatedRepo"})
        if file not in repo.files:
            return self._send(404, headers | {"X-Error-Code": "EntryNotFound"})
        data = repo.files[file]
        if not file.endswith(LARGE):
            return self._send(200, headers | {"ETag": f'"{blob_id(data)}"'}, data)
        sha256 = _sha256(data)
        headers |= {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(data))}
        return self._send(302, headers | {"Location": f"{self.hub.cdn}/cdn/{sha256}/{file}"})

    def _content(self, sha256: str) -> None:
        if self.headers.get("Authorization"):  # of the hub alone: nobody else may see a token
            return self._send(400)
        known = (data for repo in self.hub.repos.values() for data in repo.files.values())
        data = next(data for data in known if _sha256(data) == sha256)
        if self.hub.damage:
            data = bytes([data[0] ^ 1]) + data[1:]
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not asked:
            return self._send(200, {}, data)
        first, last = int(asked[1]), int(asked[2] or len(data) - 1)
        last = min(last, len(data) - 1)
        span = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        return self._send(206, span, data[first : last + 1])

    def _json(self, value: object) -> None:
        self._send(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _send(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.hub.cut_after
        if cut is not None and self.path.startswith("/cdn/"):
            self.hub.cut_after = None
            self.close_connection = True
            body = body[:cut]
        self.wfile.write(body)
