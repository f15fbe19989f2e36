from __future__ import annotations

import pytest

from ingot.artifact.pages import most_pages
from ingot.errors import InternalError
from ingot.runtime.page_table import PageTable
from ingot.runtime.prefix_cache import PrefixCache

SIZE = 4


def filled(num_pages=6, tokens=tuple(range(12)), salt=b"") -> PageTable:
    """A table in which sequence 0 has computed and published its tokens, and left."""
    pages = PageTable(num_pages, SIZE)
    assert pages.admit(0, len(tokens))
    pages.publish(0, list(tokens), len(tokens), salt)
    pages.release(0)
    return pages


def test_pages_cannot_be_taken_that_are_not_there():
    pages = PageTable(2, SIZE)
    pages.grow(0, 5)
    assert pages.num_free == 0 and not pages.can_grow(1, 1) and pages.can_grow(0, 8)
    assert not pages.admit(1, 1)
    with pytest.raises(InternalError):
        pages.grow(1, 1)
    pages.release(0)
    pages.release(0)
    assert pages.num_free == 2


def test_check_finds_a_lost_a_doubled_and_a_miscounted_page():
    pages = PageTable(3, SIZE)
    pages.grow(0, 4)
    pages.grow(1, 4)
    pages.release(1)
    pages.check()
    page = pages._blank.pop()
    with pytest.raises(InternalError):
        pages.check()
    pages._blank += [page, page]
    with pytest.raises(InternalError):
        pages.check()
    pages._blank.pop()
    pages.check()
    pages._num_owners[0] += 1
    with pytest.raises(InternalError):
        pages.check()


def test_freed_pages_are_used_again_first():
    pages = PageTable(100, SIZE)
    pages.grow(0, 8)
    assert pages.page_ids(0) == [0, 1]
    pages.release(0)
    pages.grow(1, 8)
    assert pages.page_ids(1) == [0, 1]


def test_a_prefix_is_found_after_its_owner_has_left():
    pages = filled()
    assert pages.num_free == 6
    prefix = pages.prefix.match(list(range(12)), 12, b"")
    assert [entry.page_id for entry in prefix] == [0, 1, 2]
    assert len(pages.prefix.match(list(range(12)), 11, b"")) == 2
    assert len(pages.prefix.match([*range(8), 99, 99, 99, 99], 12, b"")) == 2
    assert pages.prefix.match([99, *range(1, 12)], 12, b"") == []
    assert pages.prefix.match(list(range(12)), 12, b"salt") == []


def test_a_shared_page_is_free_when_its_last_owner_leaves():
    pages = filled()
    prefix = pages.prefix.match(list(range(12)), 11, b"")
    assert pages.admit(1, 12, prefix) and pages.admit(2, 12, prefix)
    assert pages.page_ids(1)[:2] == pages.page_ids(2)[:2] == [0, 1]
    assert pages.num_free == 2
    pages.check()
    pages.release(1)
    assert pages.num_free == 3
    pages.release(2)
    assert pages.num_free == 6
    pages.check()


def test_idle_pages_of_a_prefix_do_not_count_as_free_beside_it():
    pages = filled(num_pages=4)
    prefix = pages.prefix.match(list(range(12)), 12, b"")
    assert pages.num_free == 4 and not pages.admit(1, 20, prefix)
    assert not pages.admit(1, 16, prefix, 1)
    pages.check()
    assert pages.admit(1, 16, prefix)
    pages.check()


def test_the_end_of_the_oldest_prefix_is_evicted_first():
    pages = filled(num_pages=5)
    pages.admit(1, 8)
    pages.publish(1, [50] * 8, 8, b"")
    pages.release(1)
    assert pages.num_free == 5
    pages.grow(2, 4)
    assert pages.prefix.counters().num_evictions == 1
    assert len(pages.prefix.match(list(range(12)), 12, b"")) == 2
    assert len(pages.prefix.match([50] * 8, 8, b"")) == 2


def test_equal_pages_are_known_once():
    pages = filled()
    pages.admit(1, 12)
    pages.publish(1, list(range(12)), 12, b"")
    assert pages.prefix.counters().num_entries == 3
    pages.release(1)
    pages.check()
    assert pages.num_free == 6


def test_a_collision_replaces_the_older_page():
    pages = PageTable(4, SIZE, PrefixCache(SIZE, hash_bits=0))
    pages.admit(0, 4)
    pages.publish(0, [1] * 4, 4, b"")
    pages.admit(1, 4)
    pages.publish(1, [2] * 4, 4, b"")
    assert pages.prefix.match([1] * 4, 4, b"") == []
    assert [e.page_id for e in pages.prefix.match([2] * 4, 4, b"")] == pages.page_ids(1)
    pages.release(0)
    pages.release(1)
    pages.check()
    pages.grow(2, 16)
    assert pages.prefix.counters().num_entries == 0


def test_a_child_of_an_evicted_page_is_not_found():
    """Its parent's place may be taken by a page with the same hash and other tokens before it."""
    cache = PrefixCache(SIZE, hash_bits=0)
    first = cache.publish(None, [1] * 4, b"", 0)
    cache.evict(0)
    cache.publish(first, [2] * 4, b"", 1)
    assert cache.match([2] * 4, 4, b"") == []


def test_forgetting_makes_idle_pages_plain_ones():
    pages = filled()
    pages.admit(1, 4, pages.prefix.match(list(range(12)), 4, b""))
    pages.forget_prefixes()
    pages.check()
    assert pages.num_free == 5 and pages.prefix.counters().num_entries == 0
    pages.publish(1, list(range(4)), 4, b"")
    assert len(pages.prefix.match(list(range(4)), 4, b"")) == 1


def test_sharing_counts_owners():
    pages = PageTable(5, SIZE)
    pages.grow(0, 10)
    assert pages.share(0, 1, 10) == 8
    assert pages.page_ids(1) == pages.page_ids(0)[:2]
    pages.grow(1, 12)
    assert pages.page_ids(1)[2] != pages.page_ids(0)[2]
    pages.check()
    pages.release(0)
    pages.release(1)
    assert pages.num_free == 5


def test_pages_behind_the_window_are_dropped_and_known_ones_stay_known():
    pages = PageTable(4, SIZE, window=5)
    pages.grow(0, 12)
    pages.publish(0, list(range(12)), 8, b"")
    pages.drop_behind(0, 11)  # what the token at 8 looks back at stays
    assert pages.owned(0) == [1, 2] and pages.num_free == 2
    pages.drop_behind(0, 7)
    pages.check()
    assert len(pages.prefix.match(list(range(12)), 12, b"")) == 2
    pages.grow(0, 20)
    pages.drop_behind(0, 20)
    assert len(pages.owned(0)) == 1 and pages.num_free == 3
    pages.publish(0, list(range(20)), 20, b"")  # page 2 went before it was known
    assert pages.prefix.counters().num_entries == 1
    pages.release(0)
    pages.check()
    assert pages.num_free == 4


def test_a_prefix_behind_the_window_is_found_and_not_taken():
    pages = PageTable(6, SIZE, window=5)
    pages.grow(0, 16)
    pages.publish(0, list(range(16)), 16, b"")
    pages.release(0)
    prefix = pages.prefix.match(list(range(16)), 16, b"")
    assert len(prefix) == 4 and pages.admit(1, 20, prefix)
    assert pages.owned(1) == [*pages.page_ids(1)[3:]] and len(pages.page_ids(1)) == 5
    assert pages.num_free == 4
    assert pages.share(1, 2, 17) == 16 and pages.owned(2) == pages.page_ids(1)[3:4]
    pages.check()
    pages.release(1)
    pages.release(2)
    pages.check()
    assert pages.num_free == 6


@pytest.mark.parametrize(
    ("num_tokens", "step", "window", "most"),
    [(100, 8, 0, 25), (100, 8, 5, 8), (9, 8, 5, 3), (100, 50, 30, 25), (0, 8, 5, 0)],
)
def test_how_many_pages_a_sequence_owns_at_once(num_tokens, step, window, most):
    assert most_pages(num_tokens, step, SIZE, window) == most
