"""The cases of a test come in one order, whatever process collects them."""

from __future__ import annotations

import pytest

from tests.support.core import core, mark_further

TIERS = ("core", "thorough", "slow")


def test_cases_keep_their_order_and_come_once() -> None:
    cases = core("b", further=["a", "b", "c"], slow=["c", "d"])
    values = [case if isinstance(case, str) else case.values[0] for case in cases]
    assert values == ["b", "a", "c", "d"]


@pytest.mark.parametrize("among", ["further", "slow"])
def test_a_set_of_cases_is_refused(among: str) -> None:
    with pytest.raises(TypeError, match="sort it"):
        core("a", **{"further": (), among: {"b", "c"}})


class Case:
    """What is known of a case before tests run."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid, self.marks = nodeid, {mark.name: mark.mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def add_marker(self, name: str) -> None:
        self.marks[name] = getattr(pytest.mark, name).mark


@pytest.mark.parametrize(
    ("wanted", "core", "thorough", "slow"),
    [
        ({}, "012", "34", "5"),
        ({"core": 2}, "01", "234", "5"),
        ({"core": 1, "thorough": 2}, "0", "12", "345"),
        ({"thorough": 1}, "012", "3", "45"),
        ({"core": 0, "thorough": 0}, "", "", "012345"),
    ],
)
def test_a_test_says_how_many_of_its_cases_it_wants(
    wanted: dict[str, int], core: str, thorough: str, slow: str
) -> None:
    marks = [*[()] * 3, *[(pytest.mark.thorough,)] * 2, (pytest.mark.slow,)]
    cases = [Case(f"a[{n}]", pytest.mark.cases(**wanted), *m) for n, m in enumerate(marks)]
    others = [Case(f"b[{n}]") for n in range(3)]
    mark_further([*cases, *others])
    tiers: dict[str, str] = {}
    for case in cases:
        tier = next((name for name in ("slow", "thorough") if name in case.marks), "core")
        tiers[tier] = tiers.get(tier, "") + case.nodeid[2]
    assert tiers == {t: n for t, n in zip(TIERS, (core, thorough, slow), strict=True) if n}
    assert all(not other.marks for other in others)
