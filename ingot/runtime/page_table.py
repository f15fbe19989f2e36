"""Pages of the KV cache: which are free, and which belong to which sequence, in order."""

from __future__ import annotations

from array import array

from ingot.errors import InternalError


class PageTable:
    """Hands out pages of `page_size` slots. A page has one owner; free plus owned is all."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        # The last page to be freed is the next to be used: little memory is ever touched.
        self._free_page_ids = list(range(num_pages - 1, -1, -1))
        self._page_ids: dict[int, array[int]] = {}

    @property
    def num_free(self) -> int:
        return len(self._free_page_ids)

    def num_needed(self, num_tokens: int) -> int:
        """Pages that many tokens fill."""
        return -(-num_tokens // self.page_size)

    def page_ids(self, sequence_id: int) -> array[int]:
        """The sequence's pages as int32, in the order of its tokens. Not to be changed."""
        return self._page_ids[sequence_id]

    def can_grow(self, sequence_id: int, num_tokens: int) -> bool:
        """Whether the sequence could come to own the pages of `num_tokens` tokens."""
        owned = len(self._page_ids.get(sequence_id, ()))
        return self.num_needed(num_tokens) - owned <= self.num_free

    def grow(self, sequence_id: int, num_tokens: int) -> None:
        """Gives the sequence the pages of its first `num_tokens` tokens; `can_grow` must hold."""
        if not self.can_grow(sequence_id, num_tokens):
            raise InternalError(f"{self.num_free} free pages cannot hold {num_tokens} tokens")
        page_ids = self._page_ids.setdefault(sequence_id, array("i"))
        while len(page_ids) < self.num_needed(num_tokens):
            page_ids.append(self._free_page_ids.pop())

    def release(self, sequence_id: int) -> None:
        """Takes back all pages of the sequence; one that owns none is fine."""
        self._free_page_ids.extend(reversed(self._page_ids.pop(sequence_id, array("i"))))

    def check(self) -> None:
        """Raises InternalError unless every page is free or owned, and only once."""
        owned = [page for ids in self._page_ids.values() for page in ids]
        if sorted(owned + self._free_page_ids) != list(range(self.num_pages)):
            raise InternalError("a page is lost or has two owners")
