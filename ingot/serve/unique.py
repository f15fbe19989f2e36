"""Identifiers that no other request has."""

from __future__ import annotations

import random

_bits = random.Random().getrandbits


def unique_id() -> str:
    """32 hexadecimal digits. No secret: who knows many of them can tell the next.

    Asking the system for random bytes took as long as parsing a request.
    """
    return f"{_bits(128):032x}"
