"""API keys: a file of hashed keys, and whose key a request came with."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ingot.errors import UsageError

USE, ADMIN = "use", "admin"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_LINE = re.compile(rf"({USE}|{ADMIN}):([0-9a-f]{{64}})\s+({NAME.pattern})", re.ASCII)
_PREFIX = "ingot-"


class Key(NamedTuple):
    """A key that is let in: the SHA-256 of its text, its scope, and whose it is.

    A key with the scope `admin` may do all that one with the scope `use` may.
    """

    digest: bytes
    scope: str
    name: str

    def permits(self, scope: str) -> bool:
        """Returns whether the key has a scope."""
        return self.scope == ADMIN or scope == USE

    @property
    def line(self) -> str:
        """The key's line of the file."""
        return f"{self.scope}:{self.digest.hex()} {self.name}"


class KeyRing:
    """The keys of a file. A line is `scope:sha256 name`; `#` begins a comment.

    Raises UsageError for a file that cannot be read, that others can write to, that has no key, or
    that has a line which is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys = read_keys(path)

    def reload(self) -> int:
        """Reads the file again and returns how many keys it has. Raises as the constructor does,
        and then keeps the keys that it had."""
        self._keys = read_keys(self._path)
        return len(self._keys)

    def find(self, authorization: bytes) -> Key | None:
        """The key of an Authorization header: `Bearer KEY`, or `Basic` with the key as password.

        It takes the same time whether a key is nearly right or not at all.
        """
        text = _presented(authorization)
        digest = hashlib.sha256(text).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found if text else None


def read_keys(path: Path) -> tuple[Key, ...]:
    """The keys of a file. Raises UsageError as `KeyRing` does."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"the keys in {path} cannot be read: {reason}") from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"others may write to the keys in {path}", hint=f"Run: chmod go-w {path}")
    keys = tuple(_keys(path, text.splitlines()))
    if not keys:
        raise UsageError(f"{path} has no key", hint=f"Run: ingot key NAME --file {path}")
    return keys


def make_key(name: str, scope: str) -> tuple[str, Key]:
    """A new key: its text, which nothing keeps, and what the file says of it.

    Raises UsageError for a name that is not of letters, digits and `._@-`.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name of a key",
            hint="Supported: up to 64 letters, digits and ._@-, the first a letter or a digit.",
        )
    text = _PREFIX + secrets.token_urlsafe(32)
    return text, Key(hashlib.sha256(text.encode()).digest(), scope, name)


def _keys(path: Path, lines: Iterable[str]) -> Iterable[Key]:
    names: set[str] = set()
    for number, line in enumerate(lines, start=1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if not match:  # the line is not shown: it may be a key, put there as it is
            raise UsageError(
                f"line {number} of {path} is no key",
                hint="A line is `scope:sha256 name`, with the scope use or admin. "
                "`ingot key NAME` makes one.",
            )
        scope, digest, name = match.groups()
        if name in names:
            raise UsageError(
                f"line {number} of {path} names {name} again", hint="Give each key its own name."
            )
        names.add(name)
        yield Key(bytes.fromhex(digest), scope, name)


def _presented(authorization: bytes) -> bytes:
    """The text of the key in an Authorization header; empty if it has none."""
    scheme, _, value = authorization.strip().partition(b" ")
    value = value.strip()
    if scheme.lower() == b"bearer":
        return value
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""
