"""Python's search for garbage, in processes that serve."""

from __future__ import annotations

import gc

# Objects, and searches of the younger ones: all that came since the start is looked through about
# as often as with Python's own thresholds.
_RARELY = (10_000, 3, 2)


def search_rarely() -> None:
    """Looks for garbage rarely, and never among what is there now.

    A request leaves next to none, but makes hundreds of objects. With Python's own thresholds a
    search came after every few requests and took a tenth of a front's time.
    """
    gc.freeze()
    gc.set_threshold(*_RARELY)
