"""Records that sequences begin with instead of zeros, such as a state that was tuned."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ingot.artifact.cells import GRID
from ingot.artifact.plan import Plan
from ingot.artifact.spec import State
from ingot.errors import UsageError, listed

# How many tokens such a record stands for, so that a step goes on from it and does not begin. They
# are a whole cell of a recurrence: the record is one of a cell's end.
LEAD = GRID

Records = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class InitialRecord:
    """What a slot holds before the first token: `data` has the bytes of each of its arrays, in the
    order of the plan."""

    data: bytes

    @classmethod
    def of(cls, records: object, plan: Plan) -> InitialRecord:
        """The record that has these arrays, by the names of states; those left out are zeros.

        Raises UsageError for arrays of other names or shapes, for numbers that are not finite, and
        for a model that also keeps pages: these have nothing of tokens that were never read.
        """
        states = {state.name: state for state in plan.spec.states}
        if not states or any(state.kind == "paged" for state in plan.spec.states):
            raise UsageError(
                "the model does not keep records alone, so no sequence begins with one",
                hint="Give a state to a model of recurrences alone, such as RWKV-7.",
            )
        if not isinstance(records, Mapping) or not records.keys() <= states.keys():
            given = records if not isinstance(records, Mapping) else listed(sorted(records))
            raise UsageError(
                f"the state is {given!s:.200}", hint=f"Give arrays of {listed([*states])}."
            )
        return cls(b"".join(_stored(records.get(name), s) for name, s in states.items()))

    @cached_property
    def digest(self) -> bytes:
        """Names it: who begins with it shares prefixes with those alone who do, too."""
        return hashlib.blake2b(self.data, digest_size=16).digest()

    def salted(self, salt: bytes) -> bytes:
        """A salt of those who begin with it; no text has the byte between."""
        return salt + b"\xff" + self.digest

    def filler(self) -> Callable[[memoryview], None]:
        """What fills the pieces of a slot, from the first on; see `Executor.write_states`."""
        left = memoryview(self.data)

        def fill(piece: memoryview) -> None:
            nonlocal left
            piece[:] = left[: len(piece)]
            left = left[len(piece) :]

        return fill


Copy = tuple[int | InitialRecord, int]  # from a slot, or from the host, to a slot


def salt_with(salt: bytes, initial: InitialRecord | None) -> bytes:
    """The salt of sequences that begin with that, or with zeros."""
    return salt if initial is None else initial.salted(salt)


def lead_of(initial: InitialRecord | None) -> int:
    """How many tokens the record stands for that a sequence begins with."""
    return 0 if initial is None else LEAD


def _stored(numbers: object, state: State) -> bytes:
    """A record as its state stores it."""
    values = np.zeros(state.record, np.float32)
    if numbers is not None:
        given = np.asarray(numbers)
        if given.shape != state.record or given.dtype.kind != "f":
            raise UsageError(
                f"{state.name} is given as {given.dtype} {[*given.shape]}",
                hint=f"It has floats of shape {[*state.record]}.",
            )
        values = given.astype(np.float32)
    if not np.isfinite(values).all():
        raise UsageError(f"{state.name} is given numbers that are not finite")
    dtype = state.format.dtype
    if dtype == "bfloat16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
    kinds = {"float32": "<f4", "float16": "<f2"}
    if dtype not in kinds:
        raise UsageError(f"{state.name} is stored in {dtype}, in which none can be given")
    return values.astype(kinds[dtype]).tobytes()
