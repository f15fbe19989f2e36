"""What the HTTP front needs of a registry of models."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from ingot.serve.engine import Engine, ModelFacts


class ModelStatus(Protocol):
    """How a registered model fares."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def aliases(self) -> Sequence[str]: ...
    @property
    def facts(self) -> ModelFacts | None: ...


class Models(Protocol):
    """Models by name."""

    def lease(self, name: str) -> AbstractAsyncContextManager[Engine]:
        """An engine that stays loaded inside the block. Raises UnknownModelError and others."""
        ...

    def status(self) -> Sequence[Any]:
        """All models, in the order in which they were registered."""
        ...
