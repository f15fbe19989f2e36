"""Cubins are read without tools, and what is no cubin is refused."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.artifact.architectures import ARCHITECTURES
from ingot.artifact.target import Target
from ingot.errors import ToolchainError
from ingot.targets.cuda.compiled import Compiled
from ingot.targets.cuda.cubin import Cubin, described, read_cubin
from ingot.targets.cuda.triton_package import find_triton
from tests.support.core import core
from tests.targets.cuda.tiny import DOUBLE, KERNELS, TARGETS, all_built

SM_90 = ARCHITECTURES["sm_90"]
HEADER, NAMES_AT = struct.Struct("<IIQQQQIIQQ"), 0x3E
by_target = pytest.mark.parametrize(
    "target", core(TARGETS[1], further=TARGETS), ids=lambda target: target.level
)


def cubin_of(name: str, target: Target = TARGETS[1]) -> bytes:
    folder, built = all_built(target)
    return (folder / built.binaries[list(KERNELS).index(name)].file).read_bytes()


def sections_reversed(data: bytes) -> bytes:
    """The same file with its table of sections the other way round."""
    (first,) = struct.unpack_from("<Q", data, 0x28)
    _, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [data[first + i * HEADER.size :][: HEADER.size] for i in range(count)]
    other = bytearray(data)
    other[first : first + count * HEADER.size] = b"".join(reversed(headers))
    struct.pack_into("<H", other, NAMES_AT, count - 1 - names)
    return bytes(other)


@pytest.mark.cases(thorough=2)
@by_target
def test_a_cubin_says_its_parameters_and_what_it_uses(target: Target) -> None:
    cubin = read_cubin(cubin_of("no matrix", target))
    assert cubin.entry == "double"
    assert cubin.architecture == int(target.level.removeprefix("sm_"))
    assert cubin.parameters == ((0, 8), (8, 8), (16, 4), (24, 8), (32, 8))
    assert cubin.threads == 128
    assert cubin.local_bytes == 0


@pytest.mark.cases(thorough=4)
@by_target
@pytest.mark.parametrize("name", ["product", "attention", "crowded"])
def test_the_tools_of_nvidia_say_the_same(name: str, target: Target) -> None:
    folder, built = all_built(target)
    binary = built.binaries[list(KERNELS).index(name)]
    command = [find_triton().tool("cuobjdump"), "--dump-resource-usage", folder / binary.file]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    cubin = read_cubin((folder / binary.file).read_bytes())
    shown = f"REG:{cubin.registers} STACK:{cubin.local_bytes} SHARED:{cubin.static_shared_bytes} "
    assert shown in said
    assert (cubin.local_bytes > 0) == (name == "crowded")


def test_sections_may_come_in_any_order() -> None:
    data = cubin_of("product")
    other = sections_reversed(data)
    assert other != data and read_cubin(other) == read_cubin(data)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: b"", "no ELF file"),
        (lambda data: b"\x7fELF\x01" + data[5:], "no ELF file"),
        (lambda data: data[:7] + b"\x00" + data[8:], "an unknown interface"),
        (lambda data: data[:100], "it is truncated"),
        (lambda data: data.replace(b".nv.info.", b".nv.inf_."), "0 kernels"),
        (lambda data: data.replace(b"\0.nv.info\0", b"\0.nv.inf_\0"), "no section '.nv.info'"),
        (lambda data: data[:NAMES_AT] + b"\xff\xff" + data[NAMES_AT + 2 :], "table of sections"),
    ],
)
def test_what_is_no_cubin_is_refused(damage, reason: str) -> None:
    with pytest.raises(ToolchainError, match=reason):
        read_cubin(damage(cubin_of("product")))


def tried(data: bytes) -> None:
    """A damaged file gives the typed error, or a value of the right types."""
    try:
        cubin = read_cubin(data)
    except ToolchainError:
        return
    kinds = {"entry": str, "parameters": tuple}
    for field in fields(Cubin):
        assert isinstance(getattr(cubin, field.name), kinds.get(field.name, int))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damage_gives_the_typed_error_or_a_value(data: st.DataObject) -> None:
    whole = cubin_of("no matrix")
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)) | st.just(len(whole)))])
    places = st.integers(0, max(len(damaged) - 1, 0))
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=8)):
        damaged[place : place + 1] = bytes([value])
    tried(bytes(damaged))


@pytest.mark.parametrize("value", [0x00, 0xFF])
def test_each_byte_that_says_where_things_are_may_be_wrong(value: int) -> None:
    """The header, the table of sections, their names and the attributes, byte by byte."""
    whole = cubin_of("no matrix")
    (first,) = struct.unpack_from("<Q", whole, 0x28)
    for place in (*range(0x40), *range(first, len(whole)), *range(0x40, 0x800)):
        tried(whole[:place] + bytes([value]) + whole[place + 1 :])


@pytest.mark.parametrize("data", [b"", b"\x7fELF\x02\x01" + b"\xff" * 0x40, b"\0" * 4096])
def test_nothing_like_a_cubin_is_refused(data: bytes) -> None:
    with pytest.raises(ToolchainError):
        read_cubin(data)


def test_a_binary_is_held_to_its_spec() -> None:
    data = cubin_of("no matrix")
    binary = described(DOUBLE, "cubins/a.cubin", Compiled(data, 2048), SM_90)
    assert (binary.file, binary.entry, binary.shared_bytes) == ("cubins/a.cubin", "double", 2048)
    assert len(binary.parameters) == 5 and binary.spilled_bytes == 0 < binary.registers


@pytest.mark.parametrize(
    ("compiled", "spec", "words"),
    [
        ({"shared_bytes": 232_449}, {}, "needs 232449 bytes of shared memory, of which"),
        ({"scratch_bytes": 128}, {}, "expects 128 bytes of scratch memory"),
        ({"programs": 2}, {}, "launched in clusters of 2"),
        ({}, {"num_warps": 8}, "has 128 threads, not 256"),
        ({}, {"arguments": DOUBLE.arguments[:2]}, "has parameters of [8, 8, 4, 8, 8] bytes, not"),
        ({}, {"arguments": (*DOUBLE.arguments[:2], ("N", "i64"))}, "not of [8, 8, 8, 8, 8]"),
        ({}, {"arguments": (*DOUBLE.arguments[:2], ("N", "tensordesc"))}, "not of [8, 8, None"),
    ],
)
def test_a_binary_that_is_not_what_was_asked_for_is_refused(compiled, spec, words: str) -> None:
    whole = replace(Compiled(cubin_of("no matrix"), 2048), **compiled)
    with pytest.raises(ToolchainError) as caught:
        described(replace(DOUBLE, **spec), "cubins/a.cubin", whole, SM_90)
    assert caught.value.found.startswith("kernel small.double, compiled for sm_90, ")
    assert words in caught.value.found and "BLOCK" in caught.value.hint


def test_a_binary_for_another_architecture_is_refused() -> None:
    with pytest.raises(ToolchainError, match="is for sm_90"):
        described(DOUBLE, "a", Compiled(cubin_of("no matrix"), 0), ARCHITECTURES["sm_100"])


def test_what_a_child_hands_back_is_read_as_it_was_written() -> None:
    compiled = Compiled(b"\n\0cubin\n", 1, 2, 3)
    assert Compiled.decode(compiled.encode()) == compiled
