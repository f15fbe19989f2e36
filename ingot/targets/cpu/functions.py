"""The functions that a step calls, one for each distinct kernel call, and the units with them.

    step.cpp        calls the functions in order, layer after layer
    kernels_0.cpp   defines about half of the functions, by the time that they take to compile
    kernels_1.cpp   defines the others
    interface.cpp   the C interface, the same for every model

Units are compiled side by side, and only step.cpp grows with the depth of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ingot.targets.cpu.call import KernelCall, statement
from ingot.targets.cpu.kernel_table import kernel_named

INTERFACE = {"interface.cpp": '#include "interface.h"\n'}
UNIT = """#include "kernels.h"

namespace ingot {{

{definitions}

}}  // namespace ingot
"""
NUM_UNITS = 2


@dataclass(frozen=True, slots=True)
class Function:
    """A call whose places are arguments; `part` is the C++ type of the part of the work."""

    name: str
    call: KernelCall
    part: str

    @property
    def signature(self) -> str:
        return f"void {self.name}(const Frame& frame, {self.part} part, [[maybe_unused]] Places at)"

    @property
    def definition(self) -> str:
        lines = [
            f"{self.signature} {{",
            "  [[maybe_unused]] const auto& [memory, own, step, sequences] = frame;",
            *self.call.lines("part", "  "),
            "}",
        ]
        return "\n".join(lines)

    def lines(self, call: KernelCall, part: str, indent: str) -> list[str]:
        """The statement that makes a call by this function."""
        places = f"places<{', '.join(map(str, call.places))}>"
        return statement(self.name, ("frame", part, places), indent)

    @property
    def effort(self) -> int:
        return kernel_named(self.call.kernel).effort


def functions_of(calls: Iterable[tuple[KernelCall, str]]) -> dict[KernelCall, Function]:
    """The function of each distinct call, by the call of places; given calls and types of parts."""
    functions: dict[KernelCall, Function] = {}
    for call, part in calls:
        distinct = call.of_places()
        if distinct not in functions:
            number = sum(f.call.kernel == call.kernel for f in functions.values())
            functions[distinct] = Function(f"{call.kernel}_{number}", distinct, part)
    return functions


def kernel_units(functions: Iterable[Function]) -> Mapping[str, str]:
    """The text of the units that define the functions, by file name."""
    same_kernel: dict[object, list[Function]] = {}  # compiled once where they lie together
    for function in functions:
        key = (function.call.kernel, function.call.constants)
        same_kernel.setdefault(key, []).append(function)
    units: list[list[Function]] = [[] for _ in range(NUM_UNITS)]
    efforts = [0] * NUM_UNITS
    for group in sorted(same_kernel.values(), key=lambda group: -group[0].effort):
        lightest = efforts.index(min(efforts))
        units[lightest] += group
        efforts[lightest] += group[0].effort
    return {f"kernels_{n}.cpp": _unit(unit) for n, unit in enumerate(units) if unit}


def _unit(functions: Iterable[Function]) -> str:
    return UNIT.format(definitions="\n\n".join(function.definition for function in functions))
