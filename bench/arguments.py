"""Types of arguments of the benchmarks, which refuse what cannot be measured before anything is."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection


def at_least(least: int) -> Callable[[str], int]:
    """An integer that is not smaller."""

    def integer(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is no integer of {least} or more")
        return int(text)

    return integer


def one_of(known: Collection[str]) -> Callable[[str], str]:
    """One of these names."""

    def name(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(known)}")
        return text

    return name


def some_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Names from these, with commas between them."""
    one = one_of(known)
    return lambda text: tuple(one(name) for name in text.split(",") if name)
