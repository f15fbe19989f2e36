"""The process that opened a model. A fork of it has the model's memory, and none of its threads."""

from __future__ import annotations

import os

from ingot.errors import UsageError


class Process:
    """The process that made this object."""

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def is_current(self) -> bool:
        """Returns whether the caller is in that process, and not in a fork of it."""
        return os.getpid() == self._id

    def refuse_fork(self) -> None:
        """Raises UsageError in a fork, which would wait for threads that it does not have."""
        if not self.is_current:
            raise UsageError(
                "this model was opened in another process, and a fork has none of its threads",
                hint="Open the model in the child, or start the child with `spawn`.",
            )
