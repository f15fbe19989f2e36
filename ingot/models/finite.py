"""Looks for numbers of a checkpoint that are not finite, by their bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingot.errors import CheckpointError

Raw = NDArray[np.unsignedinteger[Any]]
# Elements looked at together: they stay in the L2 cache.
CHECKED_AT_ONCE = 2**18


def check_finite(name: str, view: Raw, mask: np.unsignedinteger[Any]) -> None:
    """Looks at every element once. `mask` has the bits of the exponent.

    Raises:
        CheckpointError: an element whose exponent has all bits set: infinity or NaN.
    """
    for start in range(0, len(view), CHECKED_AT_ONCE):
        if (view[start : start + CHECKED_AT_ONCE] & mask).max() == mask:
            raise CheckpointError(
                f"the tensor {name} holds values that are not finite",
                hint="the checkpoint is damaged or its training diverged: fetch it again, or use "
                "another",
            )
