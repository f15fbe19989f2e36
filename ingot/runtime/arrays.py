"""The arrays of a step, as the host fills them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ingot.artifact.plan import Limits
from ingot.artifact.step import SYMBOLS, TEXT_INPUTS

SIZES = tuple(symbol.name for symbol in SYMBOLS.values())

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


class StepInputs:
    """The inputs of `ingot.artifact.step`, made once for the largest step and filled anew for each.

    Of each array only the beginning counts, up to the step's sizes.

    Attributes:
        num_tokens, num_seqs, num_rows: the step's N, S and R.
        from_draws: {place in `tokens`: draw}, for tokens that are not known yet: the one that the
            previous step draws by that index of its `Draws`.
    """

    def __init__(self, limits: Limits) -> None:
        self._arrays = {
            spec.name: np.zeros([limits.bound(dim) for dim in spec.shape], spec.dtype)
            for spec in TEXT_INPUTS
        }
        self.num_tokens = self.num_seqs = self.num_rows = 0
        self.num_columns = limits.max_pages_per_seq
        self.from_draws: dict[int, int] = {}

    def __getitem__(self, name: str) -> Int32:
        return self._arrays[name]

    def clear(self) -> None:
        """Makes it a step of nothing."""
        self.num_tokens = self.num_seqs = self.num_rows = 0
        self.from_draws.clear()

    def sizes(self) -> dict[str, int]:
        """The step's sizes, by the names that the symbols have on the host."""
        return {name: getattr(self, name) for name in SIZES}

    def addresses(self) -> dict[str, int]:
        """Where the arrays lie."""
        return {name: array.ctypes.data for name, array in self._arrays.items()}
