"""Between an engine and its prompt cache: prefixes that are read for prompts, and written."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from ingot.errors import StateFileError
from ingot.runtime.executor import Executor, Places
from ingot.runtime.sequence import Sequence
from ingot.runtime.sessions.owner import Owner
from ingot.runtime.sessions.prompt_cache import PromptCache, Wanted
from ingot.runtime.sessions.state_file import Header, salt_of, write_states
from ingot.runtime.sessions.work import SessionWork


class Prefixes:
    """Reads what is kept of a prompt before it waits for its turn, and keeps what was computed.

    Files are written while nothing else is to be done. While requests run without a pause, writing
    takes a bounded part of the time.
    """

    def __init__(
        self, engine: Owner, executor: Executor, work: SessionWork, cache: PromptCache
    ) -> None:
        self._engine, self._executor, self._work, self.cache = engine, executor, work, cache
        self._residence = engine.scheduler.residence

    def arrive(self, sequence: Sequence) -> None:
        """Makes known what the cache has of a prompt beyond what is known already."""
        held = sequence.session is not None and sequence.session.num_held
        if held or sequence.num_unscored or not self._engine.scheduler.uses_prefixes:
            return
        limit = sequence.num_prompt - 1
        found = self.cache.find(sequence.token_ids, limit, sequence.salt)
        if found is None:
            return
        known = self._residence.match(sequence.token_ids, limit, sequence.salt)
        if len(known) * self._residence.pages.page_size >= found.num_tokens:
            return
        file = self.cache.use(found.kept)
        if file is None:
            return
        with file:
            try:
                if self._work.publish(file, found.num_tokens, sequence.salt):
                    self.cache.hit()
            except StateFileError as error:
                self.cache.refuse(found.kept, error)

    def leave(self, sequence: Sequence) -> None:
        """Notes what a sequence that ends has computed."""
        if sequence.error is not None or not sequence.is_running:
            return
        end = self._residence.border(min(sequence.num_computed, len(sequence.token_ids)))
        self.cache.want(sequence.token_ids[:end], sequence.salt)

    def write_one(self, *, now: bool) -> bool:
        """Writes a prefix, if one is to be written; see `PromptCache.due`."""
        wanted = self.cache.due(now=now)
        if wanted is None:
            return False
        self._engine.settle()
        self._write(wanted)
        return True

    def _write(self, wanted: Wanted) -> None:
        token_ids, salt = wanted
        pages = self._residence.match(token_ids, len(token_ids), salt)
        token_ids = token_ids[: len(pages) * self._residence.pages.page_size]
        if not token_ids or self.cache.has(token_ids, salt):
            return  # others have needed its pages
        slot = self._residence.slots.snapshot_after(pages[-1])
        places = Places([page.page_id for page in pages], slot)
        header = Header(
            belongs=self.cache.belongs,
            tokens=np.array(token_ids, "<i4").tobytes(),
            num_held=len(token_ids),
            salt=salt_of(salt),
        )

        def write(path: Path) -> int:
            return write_states(path, header, partial(self._executor.read_states, places))

        self.cache.put(Wanted(token_ids, salt), header, write)
