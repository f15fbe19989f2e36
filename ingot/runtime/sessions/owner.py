"""Part of the engine that sessions call."""

from __future__ import annotations

from typing import Protocol

from ingot.runtime.forced import ForcedSteps
from ingot.runtime.scheduler import Scheduler


class Owner(Protocol):
    """See `ingot.runtime.engine.Engine`."""

    scheduler: Scheduler
    seed: int

    def check(self, token_ids: list[int]) -> None: ...
    def settle(self) -> None: ...
    def next_numbers(self, num_sequences: int) -> tuple[int, int]: ...
    def forced_steps(self) -> ForcedSteps: ...
