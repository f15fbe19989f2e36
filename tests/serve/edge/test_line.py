"""The order in which requests get seats, and the bounds of those that wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.serve.edge.line import Line, Place
from ingot.serve.refusal import QueueFull


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def line_of(seats: int, clock: Clock | None = None) -> Line:
    line = Line(clock or Clock())
    line.num_seats = seats
    return line


def place(order: list[str], name: str, key: str = "", seats=1, tokens=0, priority=0) -> Place:
    return Place(key, seats, tokens, priority, lambda: order.append(name))


def seated_in_order(waiting: list[tuple[str, str, int]]) -> str:
    """The names of requests (name, key, priority) in the order in which a single seat is theirs."""
    order: list[str] = []
    line = line_of(1)
    places = {"first": place(order, "first")}
    line.join(places["first"], 0, 0)
    for name, key, priority in waiting:
        places[name] = place(order, name, key, priority=priority)
        line.join(places[name], 0, 0)
    for number in range(len(waiting)):
        line.leave(places[order[number]])
    return " ".join(order[1:])


def test_requests_of_a_key_come_in_order():
    assert seated_in_order([(name, "k", 0) for name in "abcd"]) == "a b c d"


def test_a_smaller_priority_comes_sooner():
    assert seated_in_order([("a", "k", 1), ("b", "k", 0), ("c", "k", -1)]) == "c b a"


def test_a_level_of_priority_is_64_requests_so_that_none_waits_for_ever():
    low = [("low", "k", 1)]
    order = seated_in_order(low + [(f"{i}", "k", 0) for i in range(70)]).split()
    assert order.index("low") == 63


def test_keys_take_turns():
    many = [(f"a{i}", "a", 0) for i in range(4)]
    assert seated_in_order([*many, ("b0", "b", 0), ("b1", "b", 0)]) == "a0 b0 a1 b1 a2 a3"


def test_a_key_that_comes_late_is_not_owed_what_was_before():
    order: list[str] = []
    line = line_of(1)
    places = {name: place(order, name, name[0]) for name in "a0 a1 a2 a3 a4 b0 b1 b2".split()}
    for name in list(places)[:5]:
        line.join(places[name], 0, 0)
    line.leave(places["a0"])
    line.leave(places["a1"])
    for name in list(places)[5:]:
        line.join(places[name], 0, 0)
    for number in range(2, 7):
        line.leave(places[order[number]])
    assert order == "a0 a1 a2 b0 a3 b1 a4 b2".split()


def test_a_key_with_long_requests_gets_fewer_turns():
    order: list[str] = []
    line = line_of(1)
    places = {"first": place(order, "first")}
    line.join(places["first"], 0, 0)
    for number in range(3):
        for key, tokens in (("long", 3 * 1024), ("short", 10)):
            name = f"{key}{number}"
            places[name] = place(order, name, key, tokens=tokens)
            line.join(places[name], 0, 0)
    for number in range(5):
        line.leave(places[order[number]])
    assert order[1:] == ["long0", "short0", "short1", "short2", "long1"]


def test_a_request_of_several_seats_waits_for_all_of_them_and_is_not_overtaken():
    order: list[str] = []
    line = line_of(4)
    small = [place(order, f"s{i}") for i in range(3)]
    for each in small:
        line.join(each, 0, 0)
    line.join(place(order, "wide", seats=3), 0, 0)
    line.join(place(order, "late"), 0, 0)
    assert order == ["s0", "s1", "s2"]
    line.leave(small[0])
    line.leave(small[1])
    assert order[3:] == ["wide"]
    line.leave(small[2])
    assert order[4:] == ["late"]


def test_a_request_of_more_seats_than_there_are_runs_alone():
    order: list[str] = []
    line = line_of(2)
    wide = place(order, "wide", seats=5)
    line.join(wide, 0, 0)
    line.join(place(order, "next"), 0, 0)
    assert order == ["wide"]
    line.leave(wide)
    assert order == ["wide", "next"]


def test_one_too_many_is_refused_and_leaves_no_trace():
    order: list[str] = []
    line = line_of(1)
    for name in "abc":
        line.join(place(order, name), 2, 0)
    with pytest.raises(QueueFull, match="2 requests wait"):
        line.join(place(order, "d"), 2, 0)
    assert (line.num_waiting, line.num_running) == (2, 1)


def test_tokens_that_wait_are_bounded():
    line = line_of(1)
    line.join(place([], "runs", tokens=1000), 0, 100)  # it does not wait
    line.join(place([], "waits", tokens=60), 0, 100)
    with pytest.raises(QueueFull, match=r"60 tokens wait .* has 50; at most 100"):
        line.join(place([], "no", tokens=50), 0, 100)
    line.join(place([], "fits", tokens=40), 0, 100)
    assert line.num_waiting_tokens == 100


def test_leaving_the_line_makes_room():
    line = line_of(1)
    first, second = place([], "a"), place([], "b", tokens=5)
    line.join(first, 0, 0)
    line.join(second, 0, 0)
    line.leave(second)
    assert (line.num_waiting, line.num_waiting_tokens) == (0, 0)


def test_those_behind_one_who_left_keep_their_order():
    ranks = [5, 0, 8, 3, 9, 1, 7, 2, 6, 4]
    for left in ranks:
        order: list[int] = []
        line = line_of(1)
        places = {f"{n}": place(order, f"{n}", "k", priority=n) for n in (-1, *ranks)}
        for each in places.values():
            line.join(each, 0, 0)
        line.leave(places[f"{left}"])
        for number in range(len(ranks) - 1):
            line.leave(places[order[number]])
        assert order == ["-1", *(f"{n}" for n in range(10) if n != left)]


def test_clients_are_told_to_wait_as_long_as_the_line_needs():
    clock = Clock()
    line = line_of(2, clock)
    assert line.retry_after() == 1
    first = place([], "a")
    line.join(first, 0, 0)
    clock.now = 8.0
    line.leave(first)
    for _ in range(7):
        line.join(place([], "x"), 0, 0)
    assert line.retry_after() == 24  # 5 that wait and the client's own, 8 s each, in 2 seats
    clock.now = 1e6
    assert line.retry_after() <= 60


@given(
    st.lists(
        st.tuples(
            st.integers(1, 5), st.sampled_from("abc"), st.integers(-2, 2), st.integers(0, 5000)
        ),
        max_size=40,
    ),
    st.randoms(use_true_random=False),
)
def test_seats_are_never_overrun_and_everyone_is_seated(requests, random):
    """However requests come, leave or give up: no more than the seats are taken, nobody is seated
    twice, and those that stay are seated."""
    order: list[int] = []
    line = line_of(4)
    places = {}
    inside = set()
    for number, (seats, key, priority, tokens) in enumerate(requests):
        places[number] = Place(key, seats, tokens, priority, lambda n=number: order.append(n))
        line.join(places[number], 0, 0)
        inside.add(number)
        if random.random() < 0.4:
            leaving = random.choice(sorted(inside))
            inside.discard(leaving)
            line.leave(places[leaving])
        taken = [places[n].num_seats for n in inside if places[n].seated_at is not None]
        assert line.num_taken == sum(taken) and (line.num_taken <= 4 or len(taken) == 1)
        assert line.num_running == len(taken)
    while inside:
        seated = [n for n in sorted(inside) if places[n].seated_at is not None]
        assert seated
        inside.discard(seated[0])
        line.leave(places[seated[0]])
    assert len(order) == len(set(order))
    assert (line.num_taken, line.num_waiting, line.num_waiting_tokens) == (0, 0, 0)
