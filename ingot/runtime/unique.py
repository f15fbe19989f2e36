"""Identifiers that no other request has."""

from __future__ import annotations

import os
import random

_random = random.Random()
_bits = _random.getrandbits
os.register_at_fork(after_in_child=_random.seed)  # or a child would go on as its parent does


def unique_id() -> str:
    """32 hexadecimal digits. No secret: who knows many of them can tell the next.

    Asking the system for random bytes took as long as parsing a request.
    """
    return f"{_bits(128):032x}"
