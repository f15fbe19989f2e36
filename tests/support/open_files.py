"""Which files this process has open, whatever other tests leave behind."""

from __future__ import annotations

import gc
import os
from contextlib import suppress


def open_files() -> frozenset[str]:
    """The open descriptors, each with what it is of.

    Of two such sets the later one may lack some of the earlier: another test's thread or server has
    let go of them meanwhile. What earlier tests left as garbage is in neither.
    """
    gc.collect()
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return frozenset(found)
