"""Says in text and tables what a compile built: formats, matrices, passes and groups."""

from __future__ import annotations

from ingot.artifact.manifest import GroupEntry, LedgerEntry, Manifest, Numerics
from ingot.artifact.matrices import StoredMatrix
from ingot.cli.output import table


def stored(numerics: Numerics) -> str:
    """Names how matrices are stored, such as `bfloat16` or `int4-g32 + int8-g32`."""
    return numerics.dtype if numerics.quantization == "none" else numerics.quantization


def name_of(matrix: StoredMatrix) -> str:
    """`layers.*.mlp.down_proj (30)`."""
    return f"{matrix.name} ({matrix.count})" if matrix.count > 1 else matrix.name


def shape_of(matrix: StoredMatrix) -> str:
    """`576x1536`."""
    return "x".join(map(str, matrix.shape))


def ledger_table(ledger: tuple[LedgerEntry, ...]) -> str:
    """Table of the found and the expected matches of each pass."""
    rows = [
        (
            entry.name, entry.matched, "-" if entry.expected is None else entry.expected,
            entry.tier, entry.program,
        )
        for entry in ledger
    ]  # fmt: skip
    columns = ("pass", "matched", "expected", "tier", "program")
    width = len(columns) if len({entry.program for entry in ledger}) > 1 else len(columns) - 1
    return table([row[:width] for row in rows], columns[:width])


def groups_text(manifest: Manifest) -> str:
    """Table of the groups that were formed and that the structure of a step allows, and why others
    were not formed. Targets that agree share one table."""
    found: dict[tuple[GroupEntry, ...], list[str]] = {}
    for target in manifest.targets:
        found.setdefault(target.main.groups, []).append(target.name)
    texts = []
    for groups, names in found.items():
        allowed = [entry for entry in groups if entry.allowed]
        rows = [(entry.name, entry.formed, entry.allowed) for entry in allowed]
        lines = [
            f"  {entry.name}: {count} not formed, {reason}"
            for entry in allowed
            for reason, count in entry.reasons
        ]
        title = f"  for {', '.join(names)}\n" if len(found) > 1 else ""
        texts.append("\n".join((title + table(rows, ("group", "formed", "allowed")), *lines)))
    return "\n\n".join(texts)
