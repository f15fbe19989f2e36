"""How matrices are stored that a checkpoint stores quantized, by what targets take."""

from __future__ import annotations

import pytest

from ingot.artifact.formats import Format, Storage
from ingot.artifact.target import Target
from ingot.compiler.options import CompileOptions
from ingot.compiler.quantization.kept import holds, kept_storage, stored_already
from ingot.errors import UsageError
from ingot.models.checkpoints.formats.quantized import QuantizedTensor
from ingot.models.checkpoints.mapped_file import TensorInfo
from ingot.models.gguf.tensors import NEAREST, GgufMatrix
from ingot.models.gguf.types import BY_NAME
from ingot.targets.target import target_named

INT4 = Storage(4, 32, multipliers=False)
CPU, CUDA = target_named("cpu:portable"), target_named("cuda:sm_90")


def matrix(name: str, kind: str, nearest: Storage | None = NEAREST) -> QuantizedTensor:
    stored = TensorInfo(name, "U8", (64, 144), 0, 64 * 144)
    encoding = GgufMatrix(stored, kind, 256)
    return QuantizedTensor(name, "F32", (64, 256), 0, 0, (stored,), encoding, nearest)


def kept(*targets: Target, **kinds: str) -> dict[str, Storage]:
    quantized = {name: matrix(name, kind) for name, kind in kinds.items()}
    return kept_storage(quantized, CompileOptions(), targets)


@pytest.mark.parametrize("kind", [n for n, kind in BY_NAME.items() if kind.storage])
def test_targets_take_every_type_as_it_is(kind: str) -> None:
    for targets in ((CPU,), (CUDA,), (CPU, CUDA)):
        assert kept(*targets, q=kind) == {"q": BY_NAME[kind].storage}
    assert holds(matrix("q", kind), kept(CPU, q=kind)["q"])


@pytest.mark.parametrize("kind", ["IQ4_NL", "Q4_1", "Q4_K", "Q6_K", "IQ4_XS"])
def test_targets_without_kernels_for_a_type_take_int8(kind: str) -> None:
    """It holds exactly what is a byte times a scale."""

    def of_one_level(columns: int, form: Format) -> bool:
        return not form.is_two_level

    quantized = {"q": matrix("q", kind)}
    assert kept_storage(quantized, CompileOptions(), (), of_one_level) == {"q": NEAREST}
    assert holds(matrix("q", kind), NEAREST) == (kind == "IQ4_NL")


def test_what_no_target_takes_is_refused() -> None:
    def nothing(columns: int, form: Format) -> bool:
        return False

    with pytest.raises(UsageError, match="no kernel takes q in int4-b32, as the checkpoint has"):
        kept_storage({"m.q.weight": matrix("q", "Q4_0")}, CompileOptions(), (), nothing)


def test_int8_holds_what_int4_does() -> None:
    assert holds(matrix("q", "Q4_0"), INT4) and holds(matrix("q", "Q4_0"), NEAREST)
    assert holds(matrix("q", "Q8_0"), NEAREST) and not holds(matrix("q", "Q8_0"), INT4)
    assert not holds(matrix("q", "Q4_0"), Storage(8, 64, multipliers=False))
    assert not holds(matrix("q", "Q4_K"), NEAREST)
    told = stored_already({"m.q": matrix("q", "Q4_K")}, {"m.q": NEAREST})
    assert told[0].startswith("1 matrices in gguf Q4_K, rounded to int8-g32")
