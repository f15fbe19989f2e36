"""Pages of the KV cache: which are free, and which belong to which sequences, in order."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from ingot.artifact.pages import most_pages
from ingot.errors import InternalError
from ingot.runtime.prefix_cache import PrefixCache, PrefixPage


@dataclass(slots=True)
class _Row:
    """A sequence's pages.

    The first `num_published` are known to the prefix cache, as `last`. The first `num_dropped`
    lie behind the window: they are no longer its own, and nobody looks at their ids.
    """

    page_ids: list[int] = field(default_factory=list)
    num_dropped: int = 0
    num_published: int = 0
    last: PrefixPage | None = None


class PageTable:
    """Hands out pages of `page_size` slots to the sequences, for layers that share a page table.

    `window` is the number of tokens that these layers look back at, or 0 for all of them. Pages
    that lie wholly behind the window are given back while the sequence runs. `step_tokens` is the
    most tokens of a step.

    A page is free or has one or more owners. A free page that the prefix cache knows is idle: it
    can be found again. Idle pages are taken for other tokens only when no other page is free, the
    one that was released first before the others.

    Pages are used for the first time in the order of their ids, and only when no free page that
    was used before is left but idle ones: little memory is ever touched.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        prefix: PrefixCache | None = None,
        *,
        window: int = 0,
        step_tokens: int = 0,
    ) -> None:
        self._step_tokens = step_tokens
        self.num_pages = num_pages
        self.page_size = page_size
        self.window = window
        self.prefix = prefix or PrefixCache(page_size)
        self.num_used = 0  # pages with a smaller id were used before
        self._blank: list[int] = []  # of these; the last one to be freed is the next to be used
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._num_owners: list[int] = []  # of these
        self._rows: dict[int, _Row] = {}

    @property
    def num_free(self) -> int:
        return self.num_pages - self.num_used + len(self._blank) + len(self._idle)

    @property
    def num_reusable(self) -> int:
        """Free pages that were used before and are not idle. They are the next to be used."""
        return len(self._blank)

    def most_of(self, num_tokens: int) -> int:
        """The most pages that a sequence of that length owns at once."""
        return most_pages(num_tokens, self._step_tokens, self.page_size, self.window)

    def num_needed(self, num_tokens: int) -> int:
        """The pages that this many tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.page_size)

    def page_ids(self, sequence_id: int) -> list[int]:
        """The sequence's pages in the order of its tokens. Not to be changed.

        The list grows with the sequence; after a release the sequence gets a new one. Its first
        entries may stand for pages behind the window, which are others' now.
        """
        return self._rows[sequence_id].page_ids

    def owned(self, sequence_id: int) -> list[int]:
        """The pages that are the sequence's own."""
        row = self._rows[sequence_id]
        return row.page_ids[row.num_dropped :]

    def can_grow(self, sequence_id: int, num_tokens: int) -> bool:
        """Returns whether there are free pages for the sequence to grow to `num_tokens` tokens."""
        row = self._rows.get(sequence_id)
        owned = 0 if row is None else len(row.page_ids)
        return self.num_needed(num_tokens) - owned <= self.num_free

    def grow(self, sequence_id: int, num_tokens: int) -> None:
        """Gives the sequence the pages of its first `num_tokens` tokens; `can_grow` must hold."""
        if not self.can_grow(sequence_id, num_tokens):
            raise InternalError(f"{self.num_free} free pages cannot hold {num_tokens} tokens")
        page_ids = self._rows.setdefault(sequence_id, _Row()).page_ids
        while len(page_ids) * self.page_size < num_tokens:
            page_ids.append(self._take_page())

    def release(self, sequence_id: int) -> None:
        """Gives up the sequence's share of its pages; a sequence that owns none is fine."""
        row = self._rows.pop(sequence_id, None)
        # The last page first: of a prefix, the end is taken for other tokens before its beginning.
        for page_id in reversed(row.page_ids[row.num_dropped :] if row else ()):
            self._disown(page_id)

    def drop_behind(self, sequence_id: int, position: int) -> None:
        """Gives up the sequence's pages that no token from `position` on looks back at.

        Those that the tokens of its page look back at stay: one that shares the full pages goes
        on from there.
        """
        row = self._rows.get(sequence_id)
        if row is not None and self.window:
            kept = self._first_kept(position // self.page_size * self.page_size)
            for page_id in row.page_ids[row.num_dropped : kept]:
                self._disown(page_id)
            row.num_dropped = max(row.num_dropped, kept)

    def cut(self, sequence_id: int, num_tokens: int) -> int:
        """Gives up the sequence's pages behind its first `num_tokens` tokens, which others are to
        follow. Returns how many tokens the rest holds: fewer where the last page is not its own
        alone, or known, and none where pages that are needed lie behind the window.
        """
        row, size = self._rows.get(sequence_id), self.page_size
        if row is None:
            return 0
        kept, whole = num_tokens // size, self.num_needed(num_tokens)
        if whole > kept and not self._is_own(row, kept):
            whole, num_tokens = kept, kept * size
        if not whole or self._first_kept(kept * size) < row.num_dropped:
            self.release(sequence_id)
            return 0
        for page_id in reversed(row.page_ids[max(whole, row.num_dropped) :]):
            self._disown(page_id)
        row.page_ids = row.page_ids[:whole]  # a list that others hold only ever grows
        while row.num_published > kept:
            row.num_published -= 1
            row.last = row.last and row.last.parent
        return num_tokens

    def place(self, sequence_id: int, num_tokens: int, num_dropped: int = 0) -> list[int]:
        """Gives a new sequence pages for tokens whose states come from elsewhere, but for the first
        `num_dropped` pages, which lie behind the window. There must be as many free."""
        self._own(sequence_id, [0] * num_dropped, num_dropped)
        self.grow(sequence_id, num_tokens)
        return self.owned(sequence_id)

    def num_dropped(self, sequence_id: int) -> int:
        """How many of the sequence's first pages lie behind the window."""
        return self._rows[sequence_id].num_dropped

    def missing(self, sequence_id: int, num_tokens: int) -> int:
        """How many pages the sequence lacks for its first `num_tokens` tokens."""
        row = self._rows.get(sequence_id)
        return self.num_needed(num_tokens) - (len(row.page_ids) if row else 0)

    def share(self, owner_id: int, sequence_id: int, num_tokens: int) -> int:
        """Makes a new sequence co-owner of the full pages of another's first `num_tokens` tokens.

        Returns how many tokens these pages hold.
        """
        num_pages, row = num_tokens // self.page_size, self._rows[owner_id]
        self._own(sequence_id, row.page_ids[:num_pages], row.num_dropped)
        return num_pages * self.page_size

    def keeps(self, sequence_id: int, position: int) -> bool:
        """Returns whether the sequence has the pages that a token at `position` looks back at."""
        return self._rows[sequence_id].num_dropped <= self._first_kept(position)

    def last_known(self, sequence_id: int) -> PrefixPage | None:
        """The last of the sequence's pages that is known."""
        return self._rows[sequence_id].last

    def admit(
        self, sequence_id: int, num_tokens: int, prefix: Tokens[PrefixPage] = (), num_spare: int = 0
    ) -> bool:
        """Gives a new sequence the pages of `prefix`, and free ones for the rest of its tokens.

        Does nothing and returns False unless `num_spare` free pages would be left.
        """
        behind = self._first_kept(len(prefix) * self.page_size)
        num_idle = sum(entry.page_id in self._idle for entry in prefix[behind:])
        missing = self.num_needed(num_tokens) - len(prefix)
        if missing + num_spare > self.num_free - num_idle:
            return False
        self._own(sequence_id, [entry.page_id for entry in prefix], behind)
        row = self._rows[sequence_id]
        row.num_published, row.last = len(prefix), prefix[-1] if prefix else None
        self.grow(sequence_id, num_tokens)
        return True

    def publish(
        self, sequence_id: int, token_ids: Tokens[int], num_computed: int, salt: bytes
    ) -> PrefixPage | None:
        """Makes the sequence's full pages known; its first `num_computed` tokens are in them.

        Returns the last of these pages, as it is known to all; None where it is not.
        """
        row, size = self._rows.get(sequence_id), self.page_size
        if row is None or row.num_published < row.num_dropped:
            return None  # what comes after pages that nobody knows is not found either
        while (row.num_published + 1) * size <= num_computed:
            start = row.num_published * size
            page_id = row.page_ids[row.num_published]
            tokens = token_ids[start : start + size]
            row.last = self.prefix.publish(row.last, tokens, salt, page_id)
            row.num_published += 1
        return row.last

    def forget_prefixes(self) -> None:
        """Empties the prefix cache."""
        self.prefix.clear()
        self._blank.extend(self._idle)
        self._idle.clear()
        for row in self._rows.values():
            row.num_published, row.last = 0, None

    def check(self) -> None:
        """Raises InternalError unless every page is free or counted once for each owner."""
        owners = Counter(page for sequence_id in self._rows for page in self.owned(sequence_id))
        free = Counter([*self._blank, *self._idle])
        wrong = [
            page_id
            for page_id in range(self.num_used)
            if self._num_owners[page_id] != owners[page_id]
            or free[page_id] != (0 if owners[page_id] else 1)
        ]
        if wrong:
            raise InternalError(f"pages that are lost or have wrong owners: {wrong}")

    def _first_kept(self, position: int) -> int:
        """Number of pages that lie wholly behind the window of the token at `position`."""
        return max(0, position - self.window + 1) // self.page_size if self.window else 0

    def _is_own(self, row: _Row, number: int) -> bool:
        """Returns whether a sequence can write to a page: nobody else has it or can find it."""
        return row.num_published <= number and self._num_owners[row.page_ids[number]] == 1

    def _own(self, sequence_id: int, page_ids: list[int], num_dropped: int) -> None:
        for page_id in page_ids[num_dropped:]:
            self._num_owners[page_id] += 1
            self._idle.pop(page_id, None)
        self._rows[sequence_id] = _Row(page_ids, num_dropped)

    def _disown(self, page_id: int) -> None:
        self._num_owners[page_id] -= 1
        if not self._num_owners[page_id]:
            if page_id in self.prefix:
                self._idle[page_id] = None
            else:
                self._blank.append(page_id)

    def _take_page(self) -> int:
        if self._blank:
            page_id = self._blank.pop()
        elif self.num_used < self.num_pages:
            page_id = self.num_used
            self.num_used += 1
            self._num_owners.append(0)
        else:
            # Pages become idle in the order of their release: the least recently released goes.
            page_id, _ = self._idle.popitem(last=False)
            self.prefix.evict(page_id)
        self._num_owners[page_id] = 1
        return page_id
