from __future__ import annotations

import argparse

import pytest

from ingot.cli.numbers import (
    format_bytes,
    format_count,
    format_seconds,
    human_bytes,
    human_int,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("4096", 4096), ("32k", 32_000), ("32K", 32_768), ("1.5k", 1500), ("2M", 2 << 20)],
)
def test_human_int_reads_both_kinds_of_suffix(text, value):
    assert human_int(text) == value


@pytest.mark.parametrize("text", ["", "k", "0", "-4", "1.5", "0.3K", "ten", "1e999", "nan", "infK"])
def test_human_int_refuses_what_is_no_positive_integer(text):
    with pytest.raises(argparse.ArgumentTypeError, match="32768"):
        human_int(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, 24 * 10**9) for text in ("24GB", "24G", "24gb", "24 GB", "24000MB")),
        ("24GiB", 24 << 30), ("24Gi", 24 << 30), ("1.5KiB", 1536), ("1.5k", 1500),
        ("2T", 2 * 10**12), ("7B", 7), ("24000000000", 24 * 10**9),
    ],
)  # fmt: skip
def test_human_bytes_reads_both_kinds_of_units(text, value):
    assert human_bytes(text) == value


@pytest.mark.parametrize("text", ["", "GB", "0", "-1GB", "24 Gb it", "1iB", "1e9", "ten", "0.1B"])
def test_human_bytes_refuses_what_is_no_size(text):
    with pytest.raises(argparse.ArgumentTypeError, match="24GiB"):
        human_bytes(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 KB"), (10_501_248, "10.5 MB"), (141e9, "141 GB")],
)
def test_format_bytes(count, text):
    assert format_bytes(int(count)) == text


def test_format_count():
    assert [format_count(n) for n in (7, 5_246_976, 70_000_000_000)] == ["7", "5.25M", "70.0B"]


def test_format_seconds():
    shown = [format_seconds(s) for s in (0.00085, 0.042, 3.14, 125.2)]
    assert shown == ["850 µs", "42 ms", "3.1 s", "2 min 5 s"]
