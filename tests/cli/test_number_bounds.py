"""Numbers at the borders between their units, and where they stop being any."""

from __future__ import annotations

import argparse

import pytest

from ingot.cli.numbers import (
    allowed,
    format_age,
    format_bytes,
    format_count,
    format_seconds,
    human_int,
    whole_number,
)

MINUTE, HOUR, DAY = 60, 3600, 86400


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "now"),  # of a clock that was put back
        (0, "now"),
        (MINUTE - 1, "now"),
        (MINUTE, "1 min ago"),
        (HOUR - 1, "59 min ago"),
        (HOUR, "1 h ago"),
        (DAY - 1, "23 h ago"),
        (DAY, "1 day ago"),
        (2 * DAY - 1, "1 day ago"),
        (2 * DAY, "2 days ago"),
        (400 * DAY, "400 days ago"),
    ],
)
def test_ages(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 µs"),
        (0.0009994, "999 µs"),
        (0.001, "1 ms"),
        (0.9994, "999 ms"),
        (1, "1.0 s"),
        (99.94, "99.9 s"),
        (100, "1 min 40 s"),
        (3599.9, "59 min 59 s"),
        (7265, "121 min 5 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (9, "9"),
        (999, "999"),
        (1000, "1.00"),
        (9_990, "9.99"),
        (10_000, "10.0"),
        (99_900, "99.9"),
        (100_000, "100"),
        (1_000_000, "1.00"),
        (123_456 * 10**12, "123456"),  # of the largest unit there is
    ],
)
def test_three_digits_and_a_unit(count: int, text: str) -> None:
    power = min((len(str(count)) - 1) // 3, 4)
    assert format_bytes(count) == f"{text} {['', 'K', 'M', 'G', 'T'][power]}B"
    assert format_count(count) == f"{text}{['', 'K', 'M', 'B', 'T'][power]}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1k", 10**3), ("1m", 10**6), ("1g", 10**9)),
        *(("1K", 2**10), ("1M", 2**20), ("1G", 2**30), ("0.5K", 512), ("1e3", 1000)),
    ],
)
def test_suffixes(text: str, value: int) -> None:
    assert human_int(text) == value


@pytest.mark.parametrize("text", ["1t", "1kb", "k1", "0k", "-1K", "0.0001k", "1 2"])
def test_what_is_no_number_is_shown(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as info:
        human_int(text)
    assert repr(text) in str(info.value)


def test_a_whole_number_can_be_zero():
    assert (whole_number("0"), whole_number("2k")) == (0, 2000)
    with pytest.raises(argparse.ArgumentTypeError):
        whole_number("-1")


def test_what_is_allowed_is_finite_and_no_less_than_nothing():
    assert [allowed(text) for text in ("0", "1e-4", "2.5")] == [0, 1e-4, 2.5]
    for text in ("-1e-9", "nan", "inf", "", "1e-4 nats"):
        with pytest.raises(argparse.ArgumentTypeError, match="is no number from 0 on"):
            allowed(text)
