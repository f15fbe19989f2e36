"""How much of the time in which this process could have run it waited for a processor."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TASKS = Path("/proc/self/task")


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Nanoseconds that threads ran, and that they waited for a processor, by thread."""

    ran: dict[str, int]
    waited: dict[str, int]

    @classmethod
    def now(cls, tasks: Path = TASKS) -> ThreadTimes:
        """Of all threads of this process; of none where the kernel does not tell."""
        ran, waited = {}, {}
        with suppress(OSError):
            for task in tasks.iterdir():
                with suppress(OSError, ValueError):  # the thread has ended
                    times = map(int, (task / "schedstat").read_text().split())
                    ran[task.name], waited[task.name], _ = times
        return cls(ran, waited)

    def share_waited(self, since: ThreadTimes) -> float | None:
        """The share of the time since then in which threads wanted to run and had no processor."""
        ran = sum(time - since.ran.get(thread, 0) for thread, time in self.ran.items())
        waited = sum(time - since.waited.get(thread, 0) for thread, time in self.waited.items())
        return waited / (ran + waited) if ran + waited > 0 else None
