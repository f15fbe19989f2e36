"""Python's search for garbage, in processes that serve."""

from __future__ import annotations

import gc

_RARELY = (10_000, 20, 20)  # objects, and searches of the younger ones


def search_rarely() -> None:
    """Looks for garbage rarely, and never among what is there now.

    A request leaves none, but makes hundreds of objects. With Python's own thresholds a search came
    after every few of them and took a tenth of a front's time.
    """
    gc.freeze()
    gc.set_threshold(*_RARELY)
