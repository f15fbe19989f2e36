"""Counts the pages of the KV cache that sequences need."""

from __future__ import annotations

from collections.abc import Sequence


def most_pages(num_tokens: int, step_tokens: int, page_size: int, window: int) -> int:
    """The most pages that a sequence owns at once on its way to `num_tokens` tokens.

    With a window these are the pages that the tokens of the step under way and of the next one,
    each of at most `step_tokens` tokens, look back at, and those of the page before them.
    """
    num_pages = -(-num_tokens // page_size)
    if window == 0:
        return num_pages
    return min(num_pages, -(-(window + 2 * step_tokens) // page_size) + 2)


def widest_window(windows: Sequence[int]) -> int:
    """The most tokens that any layer looks back at; 0 if some layer looks at all of them."""
    return max(windows) if windows and all(windows) else 0
