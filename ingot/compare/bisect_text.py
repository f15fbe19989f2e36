"""What a bisection says: in words, and as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ingot.compare.bisect import Finding
from ingot.compare.bisect_sides import Bisection
from ingot.compare.differences import Statistics
from ingot.compare.drift import by_layer

WHAT = {
    "weights": "its packed weights are not those of the model",
    "plan": "in float32, too, its instruction does not compute what the model does",
    "kernel": "as compiled, it does not leave what its instructions make of what it was given",
    "memory": "what it reads is not what was left for it",
}
SHOWN = 5  # further findings


def as_data(bisection: Bisection) -> dict[str, Any]:
    """For --json."""
    return {
        "subject": bisection.subject,
        "reference": bisection.reference,
        "target": bisection.kernels.target,
        "findings": [asdict(each.finding) for each in bisection.found],
        "layers": {layer: each.relative for layer, each in by_layer(bisection.drift).items()},
        "notes": bisection.notes,
    }


def as_text(bisection: Bisection) -> list[str]:
    """The lines of an answer."""
    found = [each.finding for each in bisection.found]
    lines = [f"{bisection.subject} ({bisection.kernels.target}) against {bisection.reference}"]
    lines += [f"  ({note})" for note in bisection.notes]
    lines += _first(found[0]) if found else [_nothing(bisection)]
    for each in found[1 : 1 + SHOWN]:
        lines.append(
            f"Further: kernel {each.number}, {each.kernel} of {each.origin}: {WHAT[each.where]}"
        )
    if len(found) > 1 + SHOWN:
        lines.append(f"and {len(found) - 1 - SHOWN} more; --json has all")
    return [*lines, *_layers(bisection)]


def _nothing(bisection: Bisection) -> str:
    kernels, weights = len(bisection.kernels.work), len(bisection.kernels.plan.of_kind("weight"))
    instructions = len(bisection.kernels.plan.instructions)
    return (
        f"No fault: {kernels} kernels, {weights} weights and {instructions} instructions do what "
        "they should. What differs is what rounding costs."
    )


def _first(found: Finding) -> Iterator[str]:
    difference = found.difference
    step = f", in the {found.step} step" if found.step else ""
    yield f"First fault: kernel {found.number}, {found.kernel} of {found.origin}"
    yield f"  {WHAT[found.where]}"
    yield f"  instruction  {found.op}"
    yield f"  made by      {found.made_by or 'not known'}"
    yield (
        f"  output       {difference.output}: {difference.num_wrong} of {difference.count} numbers "
        f"leave their tolerance{step}; relative error {difference.relative:.2e}"
    )
    yield (
        f"  worst        at {list(difference.place)}: {difference.here:.6g}, expected "
        f"{difference.right:.6g} within {difference.allowed:.2g}"
    )
    yield _row("", ("smallest", "largest", "mean", "rms", "not finite"))
    yield _row("got", _numbers(difference.got))
    yield _row("expected", _numbers(difference.expected))
    if found.note:
        yield f"  note         {found.note}"


def _numbers(s: Statistics) -> Sequence[str]:
    floats = (s.smallest, s.largest, s.mean, s.rms)
    return (*(f"{x:.4g}" for x in floats), str(s.not_finite))


def _row(name: str, cells: Sequence[str]) -> str:
    return f"  {name:<11}" + "".join(f"{cell:>12}" for cell in cells)


def _layers(bisection: Bisection) -> list[str]:
    """How far kernels are from the model at the end of each layer."""
    layers = by_layer(bisection.drift)
    if not layers:
        return []
    width = max(map(len, layers))
    lines = ["Relative error against the float32 model, at the last result of:"]
    return [*lines, *(f"  {name:<{width}}  {each.relative:.2e}" for name, each in layers.items())]
