"""Matrices that become one, where a checkpoint mixes ways to store them."""

from __future__ import annotations

import pytest

from ingot.artifact.formats import Storage
from ingot.compiler.options import CompileOptions
from ingot.compiler.quantization.kept import holds, kept_storage, stored_already
from ingot.models.checkpoints.formats.quantized import QuantizedTensor
from ingot.models.checkpoints.mapped_file import TensorInfo
from ingot.models.gguf.tensors import NEAREST, GgufMatrix

INT4 = Storage(4, 32, multipliers=False)


def matrix(name: str, kind: str, nearest: Storage | None = NEAREST) -> QuantizedTensor:
    stored = TensorInfo(name, "U8", (64, 144), 0, 64 * 144)
    encoding = GgufMatrix(stored, kind, 256)
    return QuantizedTensor(name, "F32", (64, 256), 0, 0, (stored,), encoding, nearest)


def kept(nearest: Storage | None = NEAREST, **kinds: str) -> dict[str, Storage]:
    quantized = {name: matrix(name, kind, nearest) for name, kind in kinds.items()}
    return kept_storage(quantized, CompileOptions(), (), [("q", "k", "v")])


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (("Q4_0", "Q4_0", "Q4_0"), (INT4, INT4, INT4)),
        (("Q8_0", "Q8_0", "Q8_0"), (NEAREST, NEAREST, NEAREST)),
        (("Q4_0", "Q4_0", "Q8_0"), (NEAREST, NEAREST, NEAREST)),
        (("Q4_0", "Q4_0", "Q6_K"), (NEAREST, NEAREST, NEAREST)),
        (("Q4_K", "Q4_K", "Q6_K"), (NEAREST, NEAREST, NEAREST)),
    ],
)
def test_they_are_stored_alike(kinds, expected) -> None:
    found = kept(**dict(zip("qkv", kinds, strict=True)), o="Q4_0")
    assert found == dict(zip("qkvo", (*expected, INT4), strict=True))


def test_beside_one_of_numbers_all_are_numbers() -> None:
    assert kept(q="Q4_0", k="Q4_0", o="Q4_0") == {"o": INT4}
    assert kept(o="Q8_0") == {"o": NEAREST}


def test_beside_one_of_numbers_all_are_numbers_in_every_format() -> None:
    assert kept(None, q="Q4_0", k="Q4_0", o="Q4_0") == {"o": INT4}


def test_other_checkpoints_are_left_to_their_error() -> None:
    assert kept(None, q="Q4_0", k="Q4_0", v="Q8_0") == {"q": INT4, "k": INT4, "v": NEAREST}


def test_int8_holds_what_int4_does() -> None:
    assert holds(matrix("q", "Q4_0"), INT4) and holds(matrix("q", "Q4_0"), NEAREST)
    assert holds(matrix("q", "Q8_0"), NEAREST) and not holds(matrix("q", "Q8_0"), INT4)
    assert not holds(matrix("q", "Q4_0"), Storage(8, 64, multipliers=False))
    assert not holds(matrix("q", "Q4_K"), NEAREST)
    told = stored_already({"m.q": matrix("q", "Q4_K")}, {"m.q": NEAREST})
    assert told[0].startswith("1 matrices in gguf Q4_K, rounded to int8-g32")
