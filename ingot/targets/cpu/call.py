"""A kernel call, and how it is laid out in the generated file."""

from __future__ import annotations

from dataclasses import dataclass

WIDTH = 100


@dataclass(frozen=True, slots=True)
class Call:
    """`kernel<constants>(part, arguments);`, where `part` names the thread's part of the work."""

    kernel: str
    constants: tuple[object, ...]
    arguments: tuple[object, ...]

    def lines(self, part: str, indent: str) -> list[str]:
        """The statement, broken between arguments if it is longer than a line."""
        constants = f"<{', '.join(map(str, self.constants))}>" if self.constants else ""
        *most, last = map(str, (part, *self.arguments))
        line = f"{indent}{self.kernel}{constants}("
        lines = []
        for word in (*(f"{argument}, " for argument in most), f"{last});"):
            if len(line) + len(word.rstrip()) > WIDTH:
                lines.append(line.rstrip())
                line = indent + "    "
            line += word
        return [*lines, line]
