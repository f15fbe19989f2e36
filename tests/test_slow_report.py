"""The report of slow tests: whose time counts for what."""

from __future__ import annotations

from tests.support.slow_report import COLUMNS, Row, Watch, rooms, table


class Clocks:
    """Seconds that pass, of which the process computes some."""

    def __init__(self) -> None:
        self.wall = self.computed = 0.0
        self.watch = Watch(lambda: self.wall, lambda: self.computed)

    def spend(self, seconds: float, computed: float = 0.0) -> None:
        self.wall += seconds
        self.computed += computed


def row(name: str, **seconds: float) -> Row:
    return {"name": name, **dict.fromkeys(COLUMNS, 0.0), **seconds}


def test_each_second_has_one_kind() -> None:
    clocks = Clocks()
    watch, spend = clocks.watch, clocks.spend
    with watch.span("test"):
        spend(3, computed=3)
        with watch.running("compiler"):
            spend(4)
            with watch.running("programs"):  # a thread starts it: the compiler was first
                spend(5)
        with watch.running("export"):
            spend(2, computed=2)
        spend(7)
    # What export computes is not taken off the waiting, which is at least nothing.
    assert watch.rows == [
        row("test", seconds=21, compiler=9, export=2, waiting=5),
    ]


def test_a_fixture_has_its_own_time_and_its_test_the_rest() -> None:
    clocks = Clocks()
    watch, spend = clocks.watch, clocks.spend
    with watch.span("outer"):
        with watch.running("programs"):
            spend(1)
        with watch.span("inner"):
            spend(10, computed=4)
        spend(2, computed=2)
    assert watch.rows == [
        row("inner", seconds=10, waiting=6),
        row("outer", seconds=3, programs=1),
    ]


def test_what_runs_between_tests_counts_for_none() -> None:
    clocks = Clocks()
    watch, spend = clocks.watch, clocks.spend
    with watch.running("compiler"):
        spend(5)
        with watch.span("test"):
            spend(1)
        spend(5)
    assert watch.rows == [row("test", seconds=1, compiler=1)]


def test_rooms_are_summed_up_and_the_slowest_comes_first() -> None:
    found = rooms(
        [
            row("tests/passes/test_a.py::test", seconds=1, export=1),
            row("tests/passes/deep/test_b.py::test[a::b/c]", seconds=2),
            row("tests/targets/cpu/test_c.py::test", seconds=5),
            row("tests/targets/test_d.py::test", seconds=1),
            row("tests/test_e.py::test", seconds=0.5),
            row("tests::shared (fixture)", seconds=0.25),
        ]
    )
    expected = {"all": 9.75, "targets/cpu": 5, "passes": 3, "targets": 1, "top level": 0.75}
    assert {each["name"]: each["seconds"] for each in found} == expected
    assert [each["name"] for each in found] == list(expected)
    assert next(each["export"] for each in found if each["name"] == "all") == 1


def test_the_table_has_a_line_for_each() -> None:
    lines = table([row("tests/a.py::test", seconds=12.34, waiting=5)]).splitlines()
    assert lines == [
        "   seconds  compiler    export  programs   waiting",
        "      12.3       0.0       0.0       0.0       5.0  tests/a.py::test",
    ]
