"""One expert of a quantized tensor that holds all experts of a layer."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.artifact.formats import Storage
from ingot.models.checkpoint_formats.quantized import Decoded, MatrixEncoding, View


@dataclass(frozen=True, slots=True)
class OfExpert:
    """The matrix of one expert: an entry of the first dimension of what `whole` encodes."""

    whole: MatrixEncoding
    expert: int

    @property
    def label(self) -> str:
        return self.whole.label

    @property
    def storage(self) -> Storage | None:
        return self.whole.storage

    def rows(self, view: View, first: int, last: int) -> Decoded:
        held = self.whole.rows(view, self.expert, self.expert + 1)
        zeros = None if held.zeros is None else held.zeros[0, first:last]
        return Decoded(held.values[0, first:last], held.group, held.scales[0, first:last], zeros)
