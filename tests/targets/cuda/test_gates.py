"""Gates on machine code: what is spelled well passes, and each bad spelling is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ingot.artifact.architectures import ARCHITECTURES
from ingot.artifact.launches import Binary, Extent, Launch, Launches, Variant
from ingot.artifact.target import Target
from ingot.errors import ToolchainError
from ingot.targets.cuda import gates
from ingot.targets.cuda.gates import (
    OTHER,
    PRODUCT,
    TENSOR_CORES,
    GatedKernel,
    KernelGate,
    counted,
    instructions,
)
from ingot.targets.cuda.triton_package import find_triton
from tests.support.core import core
from tests.targets.cuda.known_faults import spilled, unexpected
from tests.targets.cuda.tiny import ATTEND, KERNELS, TARGETS, all_built, launches, product

SM_80, SM_90, SM_100, *_ = ARCHITECTURES.values()
GATES = {
    "gated": PRODUCT,
    "small": KernelGate(TENSOR_CORES, ("x",)),
    "gated.attend": KernelGate(gates.ONE_WARP, ("k", "v")),
}
BINARY = Binary(
    file="cubins/a.cubin",
    entry="a",
    parameters=(),
    shared_bytes=80 * 1024,
    registers=40,
    spilled_bytes=0,
)
COUNTS = {"LDGSTS.E.BYPASS.128": 40, "HGMMA.64x16x16.F32.BF16": 8, "STG.E.128": 2}
by_target = pytest.mark.parametrize(
    "target", core(TARGETS[1], further=TARGETS), ids=lambda target: target.level
)


def found(name: str, target: Target) -> list[str]:
    """The faults of one of the tiny kernels."""
    folder, built = all_built(target)
    number = list(KERNELS).index(name)
    return gates.check(
        launches(KERNELS[name]), built.binaries[number : number + 1], folder, target, GATES
    )


@pytest.mark.cases(thorough=8)
@by_target
@pytest.mark.parametrize("name", ["product", "attention", "float16 product", "float16 attention"])
def test_a_kernel_that_is_spelled_well_has_no_faults(name: str, target: Target) -> None:
    assert found(name, target) == []


@pytest.mark.cases(thorough=10)
@by_target
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("not ahead", "no load of 16 bytes goes to shared memory by itself"),
        ("unaligned", "is a pointer unaligned?"),
        ("no matrix", "matrix instructions are missing"),
        ("crowded", "instructions move values between registers and local memory"),
        ("few bytes", "bytes under way from memory"),
    ],
)
def test_a_bad_spelling_is_found(name: str, words: str, target: Target) -> None:
    faults = found(name, target)
    assert any(words in fault for fault in faults), faults
    assert all(fault.startswith(f"cubins/{KERNELS[name].function}-") for fault in faults)


@by_target
def test_tokens_on_the_left_miss_the_newer_matrix_instructions(target: Target) -> None:
    expected = {
        "sm_80": [],
        "sm_90": ["matrix instructions are HMMA, not HGMMA"],
        "sm_100": ["matrix instructions are HMMA, not UTCHMMA"],
        "sm_103": ["matrix instructions are HMMA, not UTCHMMA"],
        "sm_120": [],
    }
    assert [fault.partition(": ")[2] for fault in found("tokens left", target)] == (
        expected[target.level]
    )


def test_sums_in_float16_are_found() -> None:
    """The dtype of sums comes first in the name, which has none on sm_100."""
    words = "are added up in float16"
    assert any(words in fault for fault in found("half sums", TARGETS[1]))
    for name in ("HMMA.16816.F16", "HGMMA.64x16x16.F16"):
        (fault,) = faults({**COUNTS, name: 1}, gate=KernelGate({}, ("w",)))
        assert words in fault
    assert faults({**COUNTS, "HGMMA.64x16x16.F32": 1}) == []


def faults(
    counts: Mapping[str, int] = COUNTS,
    binary: Binary = BINARY,
    gate: KernelGate = PRODUCT,
    dtype: str = "bf16",
    many_rows: bool = False,
) -> list[str]:
    kernel = GatedKernel(product(dtype=dtype), binary, counts, many_rows)
    return list(gates.faults(kernel, SM_90, gate))


def test_few_spills_of_few_bytes_are_no_fault() -> None:
    few, many = replace(BINARY, spilled_bytes=16), replace(BINARY, spilled_bytes=20)
    assert faults({**COUNTS, "LDL.LU": 3, "STL.64": 3}, few) == []
    assert "7 instructions move" in faults({**COUNTS, "LDL": 4, "STL": 3}, few)[0]
    assert "20 bytes of a thread" in faults({**COUNTS, "LDL": 1, "STL": 1}, many)[0]


def test_a_fault_is_known_of_one_triton_on_some_architectures_alone() -> None:
    known = f"cubins/attention.attend_tiles-1a.cubin: {spilled(7, 16)}"
    assert unexpected([known], "sm_90", "3.6.0") == []
    for level, version in (("sm_90", "3.9.0"), ("sm_90", "3.7.1"), ("sm_80", "3.6.0")):
        assert unexpected([known], level, version) == [known]
    for words in ("attention.attend_chunks-1a.cubin: ", "product.multiply-1a.cubin: "):
        other = f"cubins/{words}{spilled(7, 16)}"
        assert unexpected([known, other], "sm_90", "3.6.0") == [other]
    worse = known.replace("16 bytes", "20 bytes")
    assert unexpected([worse], "sm_90", "3.6.0") == [worse]


def test_shared_memory_is_bounded_by_that_of_a_program() -> None:
    assert faults(binary=replace(BINARY, shared_bytes=232_448)) == []
    (fault,) = faults(binary=replace(BINARY, shared_bytes=232_449), gate=OTHER)
    assert fault.startswith("232449 bytes of shared memory")
    assert SM_80.most_shared_bytes == 101_376, "of every GPU of compute capability 8"


def test_gates_know_the_matrix_instructions_of_every_architecture() -> None:
    numbers = {each.number for each in ARCHITECTURES.values()}
    assert set(TENSOR_CORES) == set(gates.ONE_WARP) == numbers


def test_other_kernels_are_not_asked_for_matrix_instructions_or_wide_loads() -> None:
    assert faults({"FADD": 1}, gate=OTHER) == []
    assert len(faults({"FADD": 1})) == 2


def test_one_family_of_matrix_instructions_is_expected() -> None:
    (fault,) = faults({**COUNTS, "HMMA.16816.F32.BF16": 1})
    assert fault == "matrix instructions are HGMMA, HMMA, not HGMMA"


def test_float32_is_multiplied_without_matrix_instructions() -> None:
    """All of them cut digits off."""
    plain = {name: count for name, count in COUNTS.items() if "MMA" not in name}
    assert faults(plain, dtype="fp32") == []
    (fault,) = faults({**plain, "HGMMA.64x16x8.F32.TF32": 1}, dtype="fp32")
    assert fault == "matrix instructions are HGMMA, not missing, for float32"


def test_loads_of_few_bytes_may_not_be_the_most() -> None:
    assert faults({**COUNTS, "LDG.E.U16": 40, "LDG.E": 99}) == []
    assert "41 loads" in faults({**COUNTS, "LDG.E.U16": 40, "LDGSTS.E": 1})[0]
    assert faults({**COUNTS, "LDGDEPBAR": 99}) == []


def test_scales_beside_integers_may_be_loaded_one_by_one() -> None:
    scales, integers = {**COUNTS, "LDG.E.U16": 99}, {**COUNTS, "LDG.E.U8.CONSTANT": 99}
    assert faults(scales, dtype="i8") == faults(integers) == []
    assert "99 loads" in faults(scales)[0] and "99 loads" in faults(integers, dtype="u8")[0]


def test_a_cache_of_integers_may_come_in_8_bytes_beside_its_scales() -> None:
    """But not byte by byte, as it does where its pointer is unaligned."""
    counts = {"LDGSTS.E.64": 4, "LDGSTS.E": 10, "HMMA.16816.F32.BF16": 2}

    def found(counts: Mapping[str, int]) -> list[str]:
        spec = replace(ATTEND, constants={**ATTEND.constants, "SCALED": True})
        arguments = (*spec.arguments[:1], ("k", "*i8"), ("v", "*i8"), *spec.arguments[3:])
        kernel = GatedKernel(replace(spec, arguments=arguments), BINARY, counts)
        return list(gates.faults(kernel, SM_90, GATES["gated.attend"]))

    assert found(counts) == []
    assert "5 loads" in found({**counts, "LDG.E.U8": 5})[0]
    assert "no load of 16 bytes" in found({**counts, "LDGSTS.E.64": 0})[0]


def variant(kernel: int, most: int) -> Variant:
    return Variant(kernel=kernel, grid=(Extent(), Extent(), Extent()), size="N" * (most > 0))


def test_kernels_of_many_rows_may_have_less_under_way() -> None:
    small = replace(BINARY, shared_bytes=1024)
    assert "bytes under way" in faults(binary=small)[0]
    assert faults(binary=small, many_rows=True) == []
    variants = [(variant(0, 16), variant(1, 0)), (variant(2, 0),), (variant(3, 0), variant(4, 16))]
    found = Launches(
        kernels=(),
        launches=tuple(Launch(group=0, arguments=(), variants=each) for each in variants),
    )
    assert gates.for_many_rows(found) == {1, 3}
    again = Launch(group=0, arguments=(), variants=(variant(1, 0),))
    assert gates.for_many_rows(replace(found, launches=(*found.launches, again))) == {3}


@pytest.mark.parametrize("bits, rows, stages, found", [
    (4, 64, 3, 0), (4, 64, 2, 1), (4, 16, 3, 1), (8, 64, 3, 0), (8, 64, 2, 1),
])  # fmt: skip
def test_weights_of_int4_may_be_fewer_beside_many_rows(
    bits: int, rows: int, stages: int, found: int
) -> None:
    """Tiles of 64 outputs and 128 columns, of three programs: 4 KB each of int4, 8 KB of int8."""
    constants = {"BITS": bits, "TILE_ROWS": rows, "TILE_OUTPUTS": 64, "TILE_COLUMNS": 128}
    spec = replace(product(dtype="i8", num_stages=stages), constants=constants)
    kernel = GatedKernel(spec, replace(BINARY, shared_bytes=57_600), COUNTS)
    assert len(list(gates.faults(kernel, SM_90, PRODUCT))) == found


def test_a_gate_is_of_a_function_or_of_its_file() -> None:
    for function, gate in (
        ("gated.multiply", PRODUCT),
        ("gated.attend", GATES["gated.attend"]),
        ("norm.rms", OTHER),
    ):
        assert gates.gate_of(function, GATES) is gate


def test_instructions_are_counted_whatever_their_predicate() -> None:
    listing = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/             @UPT  UMOV UR4, 0x400 ;
        /*0030*/              @P1  HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
        /*10040*/             @!P0 LDG.E.128 R8, desc[UR4][R2.64+0x10] ;
.L_x_1:
    """
    assert counted(listing) == {
        "LDC": 1,
        "LDG.E.128": 2,
        "UMOV": 1,
        "HGMMA.64x16x16.F32.BF16": 1,
    }


def test_what_is_no_cubin_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.cubin").write_bytes(b"nothing")
    with pytest.raises(ToolchainError, match="nvdisasm cannot read"):
        instructions(tmp_path / "a.cubin", find_triton())


def test_a_disassembler_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="nvdisasm cannot be run"):
        instructions(tmp_path / "a.cubin", replace(find_triton(), folder=tmp_path))
