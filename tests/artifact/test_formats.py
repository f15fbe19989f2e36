"""Formats against counts by hand, and what follows from them in a plan."""

from __future__ import annotations

import pytest

from ingot.artifact.formats import DTYPE_BITS, Format, Storage, rounded_rows, stored_bytes


@pytest.mark.parametrize(
    ("storage", "columns", "form", "text"),
    [
        (Storage(8, 0), 200, Format("int8", 200, 200, "float16"), "int8-b200"),
        (Storage(8, 64), 256, Format("int8", 64, 64, "float16"), "int8-b64"),
        (Storage(4, 32), 256, Format("int4", 128, 32, "float16"), "int4-g32-b128"),
        (Storage(8, 128), 100, Format("int8", 128, 128, "float16"), "int8-b128"),
        (Storage(4, 32), 96, Format("int4", 128, 32, "float16"), "int4-g32-b128"),
        (Storage(4, 64), 256, Format("int4", 128, 64, "float16"), "int4-g64-b128"),
        (Storage(4, 64), 192, Format("int4", 128, 64, "float16"), "int4-g64-b128"),
        (Storage(4, 128), 256, Format("int4", 128, 128, "float16"), "int4-b128"),
    ],
)
def test_storage_becomes_a_format(storage, columns, form, text):
    assert storage.of(columns) == form
    assert str(form) == text
    assert form.is_scaled and form.has_multipliers == ("-g" in text)


def test_plain_formats_have_no_scales():
    for dtype, bits in DTYPE_BITS.items():
        form = Format(dtype)
        assert (form.bits, str(form), form.is_scaled) == (bits, dtype, False)
        assert not form.has_multipliers
        assert form.nbytes((2, 8)) == 16 * bits // 8


@pytest.mark.parametrize(
    ("form", "shape", "nbytes"),
    [
        (rounded_rows(64), (1, 128), 128 + 2 * 4),
        (rounded_rows(64), (2, 3, 100), 600 + 2 * 3 * 2 * 4),
        (Format("int4", 128, 32, "float16"), (1, 256), 128 + 8 // 2 + 2 * 2),
        (Format("int4", 128, 32, "float16"), (6, 140), 420 + 6 * 5 // 2 + 6 * 2 * 2),
        (Format("int4", 128, 128, "float16"), (2, 128), 128 + 2 * 2),
        (Format("int4", 64, 32, "float16"), (1, 64), 32 + 1 + 2),
        (Format("bfloat16"), (3,), 6),
    ],
)
def test_bytes_are_those_of_numbers_multipliers_and_scales(form, shape, nbytes):
    assert form.nbytes(shape) == nbytes


def test_half_a_byte_is_rounded_up():
    assert [stored_bytes("int4", n) for n in (0, 1, 2, 3)] == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("storage", "label"), [(Storage(4, 32), "int4-g32"), (Storage(8, 0), "int8-channel")]
)
def test_labels(storage, label):
    assert storage.label == label
