"""Which parameter of a stacked weight is blamed for wrong rows."""

from __future__ import annotations

import pytest
import torch

from ingot.artifact.formats import Format
from ingot.artifact.plan import Buffer
from ingot.compare.bisect import _place_in

ROWS = {"q": 3, "k": 2, "v": 1}
PLACES: dict[str, tuple[list[int], str]] = {
    "the first row": ([0], "rows 0, columns 1 of q"),
    "the last row of the first": ([2], "rows 2, columns 1 of q"),
    "the first row of the second": ([3], "rows 0, columns 1 of k"),
    "all of the second": ([3, 4], "rows 0 to 1, columns 1 of k"),
    "the last row": ([5], "rows 0, columns 1 of v"),
    "two": ([2, 3, 5], "rows 2, columns 1 of q, and 2 rows after it"),
}


@pytest.mark.parametrize("place", PLACES)
def test_rows_are_those_of_the_parameter_that_holds_them(place: str) -> None:
    rows, named = PLACES[place]
    right = torch.zeros(6, 2)
    mine = right.clone()
    mine[rows, 1] = 1.0
    buffer = Buffer(
        name="qkv", format=Format("float32"), shape=(6, 2), kind="weight", sources=tuple(ROWS)
    )
    found = _place_in(buffer, mine, right, lambda name: torch.zeros(ROWS[name], 2))
    assert found == f"wrong are {named}"
