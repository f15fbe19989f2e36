"""The arrays of a step, as the host fills them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ingot.artifact.plan import Plan
from ingot.artifact.programs import STEP
from ingot.artifact.spec import SYMBOLS
from ingot.runtime.initial_record import Copy

SIZES = tuple(symbol.name for symbol in SYMBOLS.values())

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


class StepInputs:
    """The inputs of a program, made once for its largest step and filled anew for each.

    Of each array only the beginning counts, up to the step's sizes.

    Attributes:
        program: its name.
        rows: the input that says of which tokens a row is wanted; "" where each sequence has one.
        num_tokens, num_seqs, num_rows: the step's N, S and R.
        from_draws: {place in `tokens`: draw}, for tokens that are not known yet: the one that the
            previous step draws by that index of its `StepWants`.
        copies: (from, to) of records that are copied to slots before the step, in this order.
    """

    def __init__(self, plan: Plan, program: str = STEP.name) -> None:
        self._specs, limits = plan.spec.inputs, plan.limits
        self._arrays = {
            spec.name: np.zeros([limits.bound(dim) for dim in spec.shape], spec.dtype)
            for spec in self._specs
        }
        self.program = program
        self.rows = next((each.name for each in self._specs if each.shape == ("R",)), "")
        gives = next((str(each.shape[0]) for each in plan.spec.outputs), "R")
        self._of_results = SYMBOLS[gives].name
        self.num_tokens = self.num_seqs = self.num_rows = 0
        self.num_columns = limits.max_pages_per_seq
        self.from_draws: dict[int, int] = {}
        self.copies: list[Copy] = []

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def __getitem__(self, name: str) -> Int32:
        return self._arrays[name]

    @property
    def num_results(self) -> int:
        """The rows that the step returns: of chosen tokens, of all, or one of each sequence."""
        count: int = getattr(self, self._of_results)
        return count

    def clear(self) -> None:
        """Makes it a step of nothing."""
        self.num_tokens = self.num_seqs = self.num_rows = 0
        self.from_draws.clear()
        self.copies = []

    def sizes(self) -> dict[str, int]:
        """The step's sizes, by the names that the symbols have on the host."""
        return {name: getattr(self, name) for name in SIZES}

    def used(self) -> dict[str, Int32]:
        """Part of each array that a step uses, without a copy."""
        sizes = {symbol: getattr(self, each.name) for symbol, each in SYMBOLS.items()}
        return {
            spec.name: self[spec.name][tuple(slice(sizes.get(str(dim))) for dim in spec.shape)]
            for spec in self._specs
        }

    def addresses(self) -> dict[str, int]:
        """Address of each array, by name."""
        return {name: array.ctypes.data for name, array in self._arrays.items()}
