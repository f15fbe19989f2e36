"""A step calls one function for each distinct kernel call, and units divide them."""

from __future__ import annotations

import re

import pytest

from ingot.targets.cpu.call import KernelCall, place
from ingot.targets.cpu.functions import functions_of, kernel_units
from ingot.targets.cpu.generate import generate
from ingot.targets.target import target_named
from tests.targets.cpu.cases import every_case
from tests.targets.cpu.units import Unit

TARGET = "cpu:x86-64-v3"
LAYER = ("linear-64x64", "rms-37", "write-64", "attention-80")


def sources_of_layers(count: int, kind: str = "f32") -> dict[str, str]:
    """The source files of a model whose layers have the same kernels."""
    layers = {f"{n}.{name}": every_case(kind)[name] for n in range(count) for name in LAYER}
    return generate(Unit(layers, TARGET).plan, target_named(TARGET))


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_layers_share_their_kernels(kind: str) -> None:
    one, three = sources_of_layers(1, kind), sources_of_layers(3, kind)
    assert one.keys() == three.keys()
    assert [name for name in one if one[name] != three[name]] == ["step.cpp"]
    assert three["step.cpp"].count("rms_norm_0(frame") == 3


def test_every_function_is_declared_and_defined_once() -> None:
    sources = sources_of_layers(2)
    declared = re.findall(r"^void (\w+)\(.*\);$", sources["step.cpp"], re.M)
    units = [text for name, text in sources.items() if name.startswith("kernels_")]
    defined = re.findall(r"^void (\w+)\(.*\) \{$", "\n".join(units), re.M)
    assert len(units) == 2 and len(declared) >= len(LAYER)
    assert sorted(declared) == sorted(defined) == sorted(set(declared))


def call(kernel: str, size: int, *places: int) -> KernelCall:
    arguments = (f"memory.rows<float>({place(n)}, {size})" for n in places)
    return KernelCall(kernel, (size,), tuple(arguments))


def test_calls_that_differ_in_places_alone_are_one_function() -> None:
    calls = [call("norm", 8, 0, 64), call("norm", 8, 64, 64), call("norm", 16, 0, 64)]
    functions = functions_of((each, "Slice") for each in calls)
    names = [functions[each.of_places()].name for each in calls]
    assert names == ["norm_0", "norm_0", "norm_1"]
    first = functions[calls[0].of_places()]
    assert "norm<8>(part, memory.rows<float>(at[0], 8), memory.rows<float>(at[1], 8));" in (
        first.definition
    )
    assert first.lines(calls[0], "block", "") == ["norm_0(frame, block, places<0, 64>);"]
    assert first.lines(calls[1], "block", "") == ["norm_0(frame, block, places<64, 64>);"]


def test_units_take_about_as_long_to_compile() -> None:
    calls = [
        call("paged_attention", 1, 0),
        call("linear", 1, 0),
        call("linear", 2, 0),
        call("quantized_linear_add", 1, 0),
        call("rms_norm", 1, 0),
    ]
    functions = functions_of((each, "Slice") for each in calls)
    units = kernel_units(functions.values())
    efforts = [
        sum(f.effort for f in functions.values() if f.definition in text) for text in units.values()
    ]
    assert list(units) == ["kernels_0.cpp", "kernels_1.cpp"] and efforts == [5, 4]


def test_a_kernel_is_compiled_once() -> None:
    """Its functions differ in what holds their operands; they lie in one unit."""
    own = KernelCall("linear", (1,), (f"own.rows<float>({place(0)}, 1)",))
    calls = [call("linear", 1, 0), call("linear", 2, 0), own, call("linear", 3, 0)]
    functions = functions_of((each, "Slice") for each in calls)
    units = kernel_units(functions.values()).values()
    assert sum("linear<1>" in text for text in units) == 1
    assert sum(text.count("linear<1>") for text in units) == 2


def test_a_step_without_kernels_has_no_units_of_kernels() -> None:
    assert kernel_units(()) == {}
