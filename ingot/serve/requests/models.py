"""Protocol of a registry of models, as far as the HTTP front calls it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from ingot.serve.engine import Engine
from ingot.serve.settings import ModelSettings


class Models(Protocol):
    """Models by name, as `ModelRegistry` has them, where the methods are described."""

    def lease(self, name: str) -> AbstractAsyncContextManager[Engine]: ...

    def status(self) -> Sequence[Any]: ...

    def name_of(self, name: str) -> str: ...

    def events(self) -> AsyncIterator[Any]: ...

    def register(
        self,
        name: str,
        source: str,
        settings: ModelSettings | None = None,
        *,
        aliases: Iterable[str] = (),
        pinned: bool = False,
    ) -> None: ...

    def alias(self, alias: str, name: str) -> None: ...

    def pin(self, name: str, pinned: bool = True) -> None: ...

    async def load(self, name: str) -> None: ...

    async def unload(self, name: str, *, force: bool = False) -> None: ...

    async def reload(
        self, name: str, source: str | None = None, settings: ModelSettings | None = None
    ) -> None: ...
