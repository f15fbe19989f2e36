"""Keys of parts, and what goes first where a store is too large."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ingot.cache.store import Store, StoredEntry, content_of, key_of, touch

PARTS = {"a": 1, "b": ["x", "y"], "c": {"d": "ä"}}


@pytest.mark.parametrize(
    "other",
    [{"a": 2}, {"b": ["y", "x"]}, {"b": ["xy"]}, {"c": {"d": "a"}}, {"c": {"e": "ä"}}, {"f": None}],
)
def test_a_key_changes_with_each_part(other: dict[str, object]) -> None:
    assert key_of({**PARTS, **other}) != key_of(PARTS)


def test_a_key_is_the_same_in_any_order_of_the_parts() -> None:
    assert key_of(dict(reversed(PARTS.items()))) == key_of(PARTS)
    assert len(key_of(PARTS)) == 64 and int(key_of(PARTS), 16)


def test_the_content_of_a_file_counts_and_not_its_place(tmp_path: Path) -> None:
    for name, data in {"a": b"1", "b": b"1", "c": b"2"}.items():
        (tmp_path / name).write_bytes(data)
    first, second, third = (content_of(tmp_path / name) for name in "abc")
    assert first == second != third


class Shelf(Store[StoredEntry]):
    """Entries of two bytes each that are removed unless their name says that they stay."""

    def __init__(self, *names: str) -> None:
        super().__init__(Path("shelf"))
        self.left = [StoredEntry(Path(name), 2, used) for used, name in enumerate(names)]

    def found(self) -> Iterator[StoredEntry]:
        yield from self.left

    def remove(self, entry: StoredEntry) -> bool:
        if entry.path.name.startswith("stays"):
            return False
        self.left.remove(entry)
        return True


@pytest.mark.parametrize(
    ("limit", "left"),
    [(9, ["a", "b", "c", "d"]), (8, ["a", "b", "c", "d"]), (7, ["b", "c", "d"]), (4, ["c", "d"]),
     (1, []), (0, [])],
)  # fmt: skip
def test_the_longest_unused_go_first(limit: int, left: list[str]) -> None:
    shelf = Shelf("a", "b", "c", "d")
    removed = shelf.shrink(limit)
    assert [entry.path.name for entry in shelf.left] == left
    assert [entry.path.name for entry in removed] == [n for n in "abcd" if n not in left]
    assert [entry.path.name for entry in shelf.entries()] == left[::-1]


def test_for_what_stays_others_go() -> None:
    shelf = Shelf("stays", "a", "b", "c")
    assert [e.path.name for e in shelf.shrink(4, keep=Path("a"))] == ["b", "c"]


def test_what_cannot_be_touched_is_left_alone(tmp_path: Path) -> None:
    touch(tmp_path / "none")
    assert not list(tmp_path.iterdir())
