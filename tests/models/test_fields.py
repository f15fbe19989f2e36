"""Reading values of a JSON object: what each reader takes, at its bounds, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ingot.errors import ConfigError, IngotError
from ingot.models.fields import MAX_SIZE, MAX_TOKEN_ID, Fields

Read = Callable[[Fields], Any]

# The reader, JSON values with what is read from each, and JSON values that it refuses.
READERS: dict[str, tuple[Read, list[tuple[Any, Any]], list[Any]]] = {
    "integer": (
        lambda fields: fields.integer("key"),
        [(1, 1), (MAX_SIZE, MAX_SIZE)],
        [0, -1, MAX_SIZE + 1, 1.0, "1", True, [1], {}],
    ),
    "integer from 0 to 9": (
        lambda fields: fields.integer("key", 5, minimum=0, maximum=9),
        [(0, 0), (9, 9), (None, 5)],
        [-1, 10, False],
    ),
    "number": (
        lambda fields: fields.number("key"),
        [(0, 0.0), (0.0, 0.0), (1e-6, 1e-6), (3, 3.0), (1e30, 1e30)],
        [-1e-9, 1.1e30, float("inf"), 10**400, -(10**400), True, "1", [1.0]],
    ),
    "number from 2": (
        lambda fields: fields.number("key", 7.0, minimum=2.0),
        [(2, 2.0), (None, 7.0)],
        [1.999, 0],
    ),
    "positive": (
        lambda fields: fields.positive("key", 4.0),
        [(1e-30, 1e-30), (2, 2.0), (None, 4.0)],
        [0, 0.0, -1, True],
    ),
    "flag": (
        lambda fields: fields.flag("key", True),
        [(False, False), (True, True), (None, True)],
        [0, 1, "true", []],
    ),
    "choice": (
        lambda fields: fields.choice("key", {"a": "x", "b": "x", "": "none"}, "b"),
        [("a", "x"), ("", "none"), (None, "x")],
        ["x", "A", 0, False, ["a"]],
    ),
    "numbers": (
        lambda fields: fields.numbers("key"),
        [([], ()), ([1, 0.5], (1.0, 0.5)), ([1e30], (1e30,))],
        [0.5, [0], [0.0], [1, -1], [True], ["1"], [1.1e30], [None], {}],
    ),
    "token_ids": (
        lambda fields: fields.token_ids("key"),
        [(0, (0,)), ([], ()), (None, ()), ([5, 0, 5, 4], (5, 0, 4)), (MAX_TOKEN_ID, (2**31 - 1,))],
        [-1, MAX_TOKEN_ID + 1, True, False, [1, True], [1.0], "1", [None], {}],
    ),
    "nested": (
        lambda fields: fields.nested("key").names(),
        [({}, ()), (None, ()), ({"b": 1, "a": None}, ("b", "a"))],
        [[], 0, "", False],
    ),
}
TAKEN = [(name, value, read) for name, (_, taken, _) in READERS.items() for value, read in taken]
REFUSED = [(name, value) for name, (_, _, refused) in READERS.items() for value in refused]


@pytest.mark.parametrize(("name", "value", "expected"), TAKEN)
def test_what_a_reader_takes(name: str, value: Any, expected: Any) -> None:
    fields = Fields({"key": value})
    got = READERS[name][0](fields)
    assert got == expected and type(got) is type(expected)
    fields.finish()


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_what_a_reader_refuses(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"here has key = ") as caught:
        READERS[name][0](Fields({"key": value}, "here"))
    assert caught.value.hint.startswith("key must be ")


@pytest.mark.parametrize("name", ["integer", "number", "numbers"])
@pytest.mark.parametrize("values", [{}, {"key": None}])
def test_a_missing_key_without_a_default_is_refused(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="here has no key") as caught:
        READERS[name][0](Fields({"other": 1, **values}, "here"))
    assert "other" in caught.value.hint


def test_messages_show_a_long_value_in_part() -> None:
    fields = Fields({"short": "x" * 78, "long": "x" * 79})
    with pytest.raises(ConfigError) as caught:
        fields.integer("short")
    assert caught.value.found == f"config.json has short = {'x' * 78!r}"
    with pytest.raises(ConfigError) as caught:
        fields.integer("long")
    assert caught.value.found == f"config.json has long = '{'x' * 76}..."


def test_a_spelling_is_what_is_read_and_named() -> None:
    fields = Fields({"theirs": 3, "ours": 4, "empty": None})
    fields.spell(ours="theirs", other="empty", third="absent")
    fields.assume(other=7, third=False)
    assert "ours" in fields and "other" in fields and "third" in fields
    assert fields.integer("ours") == 3
    assert fields.unread() == ("empty", "ours")
    assert fields.integer("other", 5) == 7 and fields.flag("third", True) is False
    assert fields.is_null("other") and not fields.is_null("third") and not fields.is_null("ours")
    with pytest.raises(ConfigError, match="has theirs = 3"):
        fields.flag("ours")
    with pytest.raises(ConfigError, match="has the unknown key ours"):
        fields.finish()


def test_reading_counts_whatever_the_value() -> None:
    fields = Fields(dict.fromkeys("abcde"))
    assert "a" not in fields and fields.unread() == ("a", "b", "c", "d", "e")
    assert fields.raw("a", 0) == 0 and fields.is_null("b")
    fields.refuse("c", (), "no")
    assert fields.nested("d").names() == ()
    assert fields.unread() == ("e",) and fields.unread(frozenset("e")) == ()


def test_only_values_that_change_nothing_pass() -> None:
    fields = Fields({"key": "odd", "fine": [], "off": False})
    fields.refuse("fine", ({}, []), "why")
    fields.refuse("off", (False,), "why")
    with pytest.raises(ConfigError, match="has key = 'odd'") as caught:
        fields.refuse("key", ("even",), "why")
    assert caught.value.hint == "why"


def test_every_unknown_key_is_named_and_the_first_has_a_neighbour() -> None:
    fields = Fields({"size": 1, "siez": 1, "xyz": 1, "use_cache": 1})
    fields.raw("size")
    with pytest.raises(ConfigError, match="has the unknown keys siez, xyz") as caught:
        fields.finish()
    assert "nearest known key to siez: size;" in caught.value.hint
    with pytest.raises(ConfigError) as caught:
        Fields({"xyz": 1}).finish()
    assert "nearest known key to xyz: none;" in caught.value.hint


def test_objects_in_objects_say_where_they_are() -> None:
    inner = Fields({"outer": {"key": "x"}}, "here").nested("outer")
    with pytest.raises(ConfigError, match="here: outer has key = 'x'"):
        inner.integer("key")
    with pytest.raises(ConfigError, match="here: outer has the unknown key key"):
        Fields({"outer": {"key": "x"}}, "here").nested("outer").finish()


# Faults that are noted


def test_every_fault_is_noted_once_and_reading_goes_on() -> None:
    faults: list[IngotError] = []
    fields = Fields({"a": "x", "n": {"b": 0}, "c": -1, "s": 5, "x": 1}, on_fault=faults.append)
    inner = fields.nested("n")
    for _ in range(2):
        assert fields.integer("a") > 0 and inner.positive("b") > 0 and fields.number("c") > 0
        assert fields.choice("s", {"one": "1"}) == "" and fields.flag("missing") is False
    assert fields.numbers("a") == () and fields.nested("a").names() == ()
    fields.refuse("x", (2,), "why")
    assert [fault.found for fault in faults] == [
        "config.json has a = 'x'",
        "config.json: n has b = 0.0",
        "config.json has c = -1",
        "config.json has s = 5",
        "config.json has no missing",
        "config.json has x = 1",
    ]
    assert not fields.sound() and not fields.sound("a") and fields.sound("x", "unheard")


def test_what_contradicts_after_a_stand_in_is_not_noted() -> None:
    """The control: it is where all values are the file's own."""
    faults: list[IngotError] = []
    fields = Fields({"a": "x"}, on_fault=faults.append)
    with fields.noting():
        raise ConfigError("first")
    fields.integer("a")
    with fields.noting():
        raise ConfigError("second")
    assert [fault.found for fault in faults] == ["first", "config.json has a = 'x'"]
    strict = Fields({})
    with pytest.raises(ConfigError, match="third"), strict.noting():
        raise ConfigError("third")


def test_keys_that_are_absent() -> None:
    fields = Fields({"rope": {"theta": 5}, "here": 3, "null": None})
    for key, default in (("theta", 9.0), ("here", 2.0), ("null", 4.0), ("one", 1.0), ("zero", 0.0)):
        fields.number(key, default)
    assert fields.absent() == ("null",)
