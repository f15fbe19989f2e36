"""Numbers as people write and read them."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def human_int(text: str) -> int:
    """A positive integer such as `4096`, `32k` (32000) or `32K` (32768), for argparse."""
    digits, factor = text, 1
    if text[-1:] in _SUFFIXES:
        digits, factor = text[:-1], _SUFFIXES[text[-1]]
    try:
        value = float(digits) * factor
        whole = int(value)
    except (ValueError, OverflowError):
        whole, value = 0, 0.5
    if whole != value or whole < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a positive number; write 4096, 32k (32000) or 32K (32768)"
        )
    return whole


def whole_number(text: str) -> int:
    """As `human_int`, and `0`."""
    return 0 if text == "0" else human_int(text)


def number_from(
    low: float, below: float = math.inf, *, above: bool = False, finite: bool = True
) -> Callable[[str], float]:
    """A reader, for argparse, of numbers from `low` on (or above it) that are below another."""
    said = f"{'above' if above else 'from'} {low:g}"
    if below < math.inf:
        said += f" and below {below:g}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        fits = (low < value if above else low <= value) and (value < below or not finite)
        if not fits:
            raise argparse.ArgumentTypeError(f"{text!r} is no number {said}")
        return value

    return read


def allowed(text: str) -> float:
    """Parses the largest allowed error, such as `0.01` or `1e-4`, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on; write 0.01 or 1e-4")
    return value


def human_bytes(text: str) -> int:
    """A size such as `24GB` or `24G`, in powers of 1000, or `24GiB`, in powers of 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?)(i?)B?", text, re.IGNORECASE | re.ASCII)
    power = " KMGT".index(match[2].upper() or " ") if match else 0
    size = int(float(match[1]) * (1024 if match[3] else 1000) ** power) if match else 0
    if size < 1 or (match and match[3] and not power):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size; write 24GB, 24GiB, or 24G, which is 24GB"
        )
    return size


def format_bytes(count: int) -> str:
    """`6815744` as `6.82 MB`; powers of 1000."""
    return _in_units(count, (" B", " KB", " MB", " GB", " TB"))


def format_count(count: int) -> str:
    """`3237120` as `3.24M`; powers of 1000."""
    return _in_units(count, ("", "K", "M", "B", "T"))


def format_seconds(seconds: float) -> str:
    """A duration in a unit that fits its size: `850 µs`, `42 ms`, `3.1 s`, `2 min 5 s`."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def format_age(seconds: float) -> str:
    """Formats an age roughly: `now`, `5 min ago`, `3 h ago`, `12 days ago`."""
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        count = int(seconds // unit)
        if count > 0:
            return f"{count} {name if name != 'days' or count > 1 else 'day'} ago"
    return "now"


def _in_units(count: int, units: Sequence[str]) -> str:
    """Three digits in the unit that fits; each is 1000 times the one before."""
    value, power = float(count), 0
    while value >= 1000 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    digits = 0 if power == 0 or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f}{units[power]}"
