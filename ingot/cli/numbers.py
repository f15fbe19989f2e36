"""Numbers as people write and read them."""

from __future__ import annotations

import argparse

_SUFFIXES = {
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "K": 1024,
    "M": 1024**2,
    "G": 1024**3,
}


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


def format_bytes(count: int) -> str:
    """`6815744` as `6.82 MB`; powers of 1000."""
    value, unit = float(count), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{count} B" if unit == "B" else f"{_three_digits(value)} {unit}"


def format_count(count: int) -> str:
    """`3237120` as `3.24M`; powers of 1000."""
    value, unit = float(count), ""
    for larger in ("K", "M", "B", "T"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return str(count) if not unit else f"{_three_digits(value)}{unit}"


def format_seconds(seconds: float) -> str:
    """A duration in a unit that fits its size: `850 µs`, `42 ms`, `3.1 s`, `2 min 5 s`."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
