"""Progress on stderr: a live display on a terminal, and elsewhere a plain line for each stage.

The live display needs rich, which comes with the extra `compile`. Without it, lines are plain.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, TextIO

from ingot.cli.numbers import format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Progress(Protocol):
    """Called as progress(stage, detail, fraction); fraction is None while the end is unknown."""

    def __call__(self, stage: str, detail: str, fraction: float | None) -> None: ...


@contextlib.contextmanager
def progress_display(stream: TextIO | None = None) -> Iterator[Progress]:
    """A progress callback that fits the stream (default: stderr); ends the last stage on exit."""
    stream = stream or sys.stderr
    if not stream.isatty() or find_spec("rich") is None:
        yield PlainProgress(stream)
        return
    with _rich_progress(stream) as rich_progress:
        display = LiveProgress(rich_progress)
        yield display
        display.finish()


def _rich_progress(stream: TextIO) -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    class Elapsed(ProgressColumn):
        """The time that a stage took, or has taken so far."""

        def render(self, task: Task) -> Text:
            seconds = task.finished_time if task.finished else task.elapsed
            return Text(f"{format_seconds(seconds or 0.0):>9}")

    return RichProgress(
        TextColumn("{task.fields[mark]} {task.fields[stage]:<9}"),
        BarColumn(bar_width=24),
        Elapsed(),
        TextColumn(" [dim]{task.description}"),
        console=Console(file=stream),
    )


class PlainProgress:
    """Prints a line when a stage begins."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage = ""

    def __call__(self, stage: str, detail: str, fraction: float | None) -> None:
        if stage != self._stage:
            print(f"{stage:<9} {detail}".rstrip(), file=self._stream, flush=True)
        self._stage = stage


class LiveProgress:
    """A line for each stage: a bar while it runs, then a check mark and its time."""

    def __init__(self, rich_progress: RichProgress) -> None:
        self._rich = rich_progress
        self._task: TaskID | None = None
        self._stage = ""

    def __call__(self, stage: str, detail: str, fraction: float | None) -> None:
        if self._task is None or stage != self._stage:
            self.finish()
            self._stage = stage
            self._task = self._rich.add_task(detail, total=None, stage=stage, mark=" ")
        total = None if fraction is None else 1.0
        self._rich.update(self._task, description=detail, total=total, completed=fraction or 0.0)

    def finish(self) -> None:
        """Marks the running stage as done."""
        if self._task is not None:
            self._rich.update(self._task, total=1.0, completed=1.0, mark="✓")
        self._task, self._stage = None, ""
