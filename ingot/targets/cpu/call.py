"""A kernel call, and how it is laid out in the generated file.

A layer calls the same kernels as the layer before, with the same constants; only the places of its
operands are others. So a call becomes a function of places, which is compiled once for all layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count

WIDTH = 100
_PLACE = re.compile(r"@(\d+)")


def place(number: int) -> str:
    """A number that tells where an operand lies, to be spelled within an argument of a call."""
    return f"@{number}"


@dataclass(frozen=True, slots=True)
class KernelCall:
    """`kernel<constants>(part, arguments);`, where `part` names the thread's part of the work."""

    kernel: str
    constants: tuple[object, ...]
    arguments: tuple[object, ...]

    @property
    def places(self) -> tuple[int, ...]:
        """The places of its operands, in order."""
        return tuple(int(found) for found in _PLACE.findall(" ".join(map(str, self.arguments))))

    def of_places(self) -> KernelCall:
        """The same call wherever its operands lie: `at[i]` stands for each place."""
        numbers = count()
        arguments = (
            _PLACE.sub(lambda _: f"at[{next(numbers)}]", str(argument))
            for argument in self.arguments
        )
        return replace(self, arguments=tuple(arguments))

    def lines(self, part: str, indent: str) -> list[str]:
        """The statement."""
        constants = f"<{', '.join(map(str, self.constants))}>" if self.constants else ""
        return statement(f"{self.kernel}{constants}", map(str, (part, *self.arguments)), indent)


def statement(function: str, arguments: Iterable[str], indent: str) -> list[str]:
    """`function(arguments);`, broken after commas if it is longer than a line."""
    first, *rest = f"{function}({', '.join(arguments)});".split(", ")
    lines, line = [], indent + first
    for word in rest:
        if len(line) + len(f", {word},") > WIDTH:
            lines.append(f"{line},")
            line = f"{indent}    {word}"
        else:
            line += f", {word}"
    return [*lines, line]
