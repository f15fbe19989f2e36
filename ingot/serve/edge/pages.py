"""`Pages`: which web pages a browser lets read the server's answers (CORS)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ingot.errors import UsageError

ANY = "*"
Headers = list[tuple[bytes, bytes]]

# Programs that show pages have schemes of their own, some of them without a host.
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#@\s,]*", re.ASCII)
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{1,4096}")  # of header fields, in a list
_METHODS = b"GET, HEAD, POST"
_USUAL_HEADERS = b"authorization, content-type, x-request-id"
_EXPOSED = b"x-request-id, retry-after, x-should-retry"
_MAX_AGE = b"7200"  # seconds that a browser need not ask again; Chrome takes no more
_VARY = (b"vary", b"Origin")


class Pages:
    """Pages of other sites that may call the server, by their origins such as
    `https://chat.example.com`; `*` stands for all.

    Raises UsageError for what is no origin.
    """

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(map(_checked, origins))

    def allow(self, origin: str) -> bool:
        """Returns whether the pages of an origin may call."""
        return bool(origin) and (origin in self._origins or ANY in self._origins)

    def headers(self, given: Mapping[bytes, bytes]) -> Headers:
        """What any answer carries besides, to a request with these headers."""
        if not self._origins:
            return []
        origin = given.get(b"origin", b"")
        if not self.allow(origin.decode("latin-1")):
            return [_VARY]
        shown = ANY.encode() if ANY in self._origins else origin
        return [
            _VARY,
            (b"access-control-allow-origin", shown),
            (b"access-control-expose-headers", _EXPOSED),
        ]

    def preflight(self, method: str, given: Mapping[bytes, bytes]) -> Headers | None:
        """What the answer to a browser carries that asks whether a page may call; None where this
        is no such question, or the page may not."""
        asks = method == "OPTIONS" and b"access-control-request-method" in given
        if not asks or not self.allow(given.get(b"origin", b"").decode("latin-1")):
            return None
        wanted = given.get(b"access-control-request-headers", b"").strip()
        # Clients bring headers of their own, which change nothing here.
        named = wanted if _NAMES.fullmatch(wanted) else _USUAL_HEADERS
        return [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", named),
            (b"access-control-max-age", _MAX_AGE),
        ]


def _checked(origin: str) -> str:
    """An origin as browsers send it. Raises UsageError."""
    if not _ORIGIN.fullmatch(lower := origin.lower()):
        raise UsageError(
            f"{origin!r:.200} is no origin",
            hint="Write --allow-origin https://chat.example.com, with its port if it has one and "
            "without a path; '*' allows the pages of all sites.",
        )
    return lower
