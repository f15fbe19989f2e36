"""The cases of a test come in one order, whatever process collects them."""

from __future__ import annotations

import pytest

from tests.support.core import core


def test_cases_keep_their_order_and_come_once() -> None:
    cases = core("b", further=["a", "b", "c"], slow=["c", "d"])
    values = [case if isinstance(case, str) else case.values[0] for case in cases]
    assert values == ["b", "a", "c", "d"]


@pytest.mark.parametrize("among", ["further", "slow"])
def test_a_set_of_cases_is_refused(among: str) -> None:
    with pytest.raises(TypeError, match="sort it"):
        core("a", **{"further": (), among: {"b", "c"}})
