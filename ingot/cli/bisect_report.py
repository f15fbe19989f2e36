"""Text and JSON of `ingot compare --bisect`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ingot.cli.compare_report import finite
from ingot.cli.output import facts, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingot.compare.bisect import Finding
    from ingot.compare.bisect_sides import Bisection
    from ingot.compare.differences import Statistics
    from ingot.compare.numbers_apart import Apart

WHAT = {
    "weights": "the packed weights of this kernel are not those of the model",
    "plan": "in float32, too, this instruction does not compute what the model does",
    "kernel": "as compiled, this kernel does not leave what its instructions make of its inputs",
    "memory": "what this kernel reads was overwritten after it was made",
}
SHOWN = 5  # further faults
STATISTICS = ("", "smallest", "largest", "mean", "rms", "not finite")


def as_object(bisection: Bisection) -> dict[str, Any]:
    """A bisection for JSON; a number that is not finite is null."""
    found: dict[str, Any] = finite(
        {
            "artifact": bisection.subject,
            "target": bisection.kernels.target,
            "reference": bisection.reference,
            "findings": [asdict(each.finding) for each in bisection.found],
            "numbers_apart": [asdict(each) for each in bisection.apart],
            "layers": {name: each.relative for name, each in bisection.layers.items()},
            "notes": bisection.notes,
        }
    )
    return found


def summary(bisection: Bisection) -> str:
    """The first fault of an artifact, the others in a line each, and the errors by layer."""
    head = f"Bisected {bisection.subject}, {bisection.kernels.target}, against "
    found = [each.finding for each in bisection.found]
    sections = [
        "\n".join((head + bisection.reference, *(f"  note: {note}" for note in bisection.notes))),
        _apart(bisection.apart),
        _first(found[0]) if found else _nothing(bisection),
        _further(found[1:]),
        _layers(bisection),
    ]
    return "\n\n".join(section for section in sections if section)


def _nothing(bisection: Bisection) -> str:
    plan = bisection.kernels.plan
    rest = "these numbers" if bisection.apart else "what number formats cost"
    return (
        f"No fault: {len(plan.kernels)} kernels, {len(plan.of_kind('weight'))} weights and "
        f"{len(plan.instructions)} instructions do what they should. What differs is {rest}."
    )


def _apart(apart: Sequence[Apart]) -> str:
    """The matrices of two artifacts whose numbers differ."""
    if not apart:
        return ""
    rows = [
        (
            each.name,
            f"{each.rows} of {each.of_rows}",
            f"{each.error:.2g}",
            f"{each.explained:.1g}",
            f"{each.factor:.3g}",
        )
        for each in apart[:SHOWN]
    ]
    more = f"\n  and {len(apart) - SHOWN} more; --json has all" if len(apart) > SHOWN else ""
    head = ("matrix", "rows", "largest error", "explained", "factor")
    return "Numbers that differ by more than their formats explain\n" + table(rows, head) + more


def _first(found: Finding) -> str:
    there = found.difference
    step = f", in the {found.step} step" if found.step else ""
    rows = [
        ("what", WHAT[found.where]),
        ("instruction", found.op),
        ("made by", found.made_by or "not known"),
        ("output", f"{there.output}{step}"),
        (
            "beyond",
            f"{there.num_wrong} of {there.count} numbers; relative error {there.relative:.2e}",
        ),
        (
            "worst",
            f"at {list(there.place)}: {there.here:.6g}, expected {there.right:.6g} within "
            f"{there.allowed:.2g}",
        ),
    ]
    rows += [("note", found.note)] if found.note else []
    numbers = table(
        [("got", *_numbers(there.got)), ("expected", *_numbers(there.expected))], STATISTICS
    )
    return f"First fault: kernel {found.number}, {found.kernel} of {found.origin}\n" + "\n\n".join(
        (facts(rows), numbers)
    )


def _numbers(found: Statistics) -> tuple[str, ...]:
    floats = (found.smallest, found.largest, found.mean, found.rms)
    return (*(f"{number:.4g}" for number in floats), str(found.not_finite))


def _further(found: list[Finding]) -> str:
    if not found:
        return ""
    rows = [(f"{f.number}", f.kernel, f.origin, f.where) for f in found[:SHOWN]]
    more = f"\n  and {len(found) - SHOWN} more; --json has all" if len(found) > SHOWN else ""
    return "Further faults\n" + table(rows, ("kernel", "is", "of", "in its")) + more


def _layers(bisection: Bisection) -> str:
    """Table of the error at the end of each layer."""
    rows = [(name, f"{each.relative:.2e}") for name, each in bisection.layers.items()]
    if not rows:
        return ""
    return table(rows, ("after", "relative error against the plan in float32"))
