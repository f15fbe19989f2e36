"""What rounding costs, in nats a position: KL of the model to the rounded one. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from ingot.artifact.formats import Storage

# A way to store a matrix: in integers, or, with None, in the dtype of the model.
Way = Storage | None


@dataclass(slots=True)
class Costs:
    """Costs of a matrix.

    Attributes:
        stored: of the matrix, by the way that it is stored.
        rows: of the rows that it multiplies in int8, by the columns that share a scale.
    """

    stored: dict[Way, float] = field(default_factory=dict)
    rows: dict[int, float] = field(default_factory=dict)

    def add(self, other: Costs) -> None:
        for way, cost in other.stored.items():
            self.stored[way] = self.stored.get(way, 0.0) + cost
        for block, cost in other.rows.items():
            self.rows[block] = self.rows.get(block, 0.0) + cost
