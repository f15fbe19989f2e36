"""`Inbox`: the progress of one job on its way to who reads it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from operator import attrgetter

from ingot.errors import IngotError
from ingot.serve.engine import Piece, Progress, Scored


class Inbox:
    """Takes progress and gives it to one reader. For one event loop alone.

    What came while the reader was busy is given as one, so that it can catch up.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._items: deque[Progress] = deque()
        self._error: IngotError | None = None
        self._reader: asyncio.Future[None] | None = None

    def put(self, item: Progress | IngotError) -> None:
        """Takes what is new; an error ends the job."""
        if isinstance(item, IngotError):
            self._error = item
        else:
            self._items.append(item)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> Progress:
        """What has come since the last call. Raises the error that ended the job."""
        while not self._items:
            if self._error is not None:
                raise self._error
            self._reader = self.loop.create_future()
            await self._reader
        items = [*self._items]
        self._items.clear()
        return items[0] if len(items) == 1 else joined(items)


def joined(parts: list[Progress]) -> Progress:
    """Progress in a row as one."""
    by_index: dict[int, list[Piece]] = {}
    for part in parts:
        for piece in part.pieces:
            by_index.setdefault(piece.index, []).append(piece)
    first, last = parts[0], parts[-1]
    return Progress(
        [_joined(pieces) for pieces in by_index.values()],
        last.finished,
        first.num_cached_tokens,
        first.prompt_logprobs,
        last.metrics,
    )


def _joined(pieces: list[Piece]) -> Piece:
    last = pieces[-1]
    if len(pieces) == 1:
        return last
    return Piece(
        last.index,
        "".join(map(attrgetter("text"), pieces)),
        [token for piece in pieces for token in piece.token_ids],
        _joined_logprobs(pieces),
        last.finish_reason,
        last.stop_reason,
    )


def _joined_logprobs(pieces: Iterable[Piece]) -> list[list[Scored]] | None:
    found = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    return [scores for each in found for scores in each] if found else None
