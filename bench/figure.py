"""Measured values, each beside its limit, as a table and as JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.processes import processors


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value beside its limit; `better` tells which side of it is good."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    better: str = "lower"
    note: str = ""

    @property
    def ok(self) -> bool:
        if self.limit is None:
            return True
        return self.value <= self.limit if self.better == "lower" else self.value >= self.limit


def line(figure: Figure) -> str:
    """A figure as a line of the table."""
    limit = ""
    if figure.limit is not None:
        sign = "<=" if figure.better == "lower" else ">="
        limit = f"{sign} {figure.limit:g} {figure.unit}  {'ok' if figure.ok else 'MISSED'}"
    value = f"{figure.value:.2f} {figure.unit}"
    return f"{figure.name:<36}{value:>16}   {limit:<22} {figure.note}".rstrip()


def machine() -> str:
    """This machine, as a table's heading has it."""
    names = processors()
    return f"{len(names)} x {names[0]}, Python {platform.python_version()}"


def show(figures: Iterable[Figure], file: Path | None = None) -> int:
    """Prints figures as they are measured, and writes them. Returns 1 if a limit is missed."""
    found = []
    for figure in figures:
        print(line(figure), flush=True)
        found.append(figure)
    if file:
        file.write_text(json.dumps([asdict(figure) for figure in found], indent=1) + "\n")
    return 0 if all(figure.ok for figure in found) else 1
