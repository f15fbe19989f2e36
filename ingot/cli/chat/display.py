"""Writes an answer as it comes, and the thinking before it."""

from __future__ import annotations

import sys
from typing import Literal, NamedTuple, TextIO, get_args

from ingot.settings import settings

Think = Literal["show", "dim", "hide"]
THINK_MODES: tuple[Think, ...] = get_args(Think)

_DIM, _PLAIN, _ERASE = "\033[2m", "\033[0m", "\r\033[K"


class ThinkingMarks(NamedTuple):
    """Marks before thinking, between it and the answer, and if no answer follows."""

    before: str = ""
    after: str = ""
    broken_off: str = ""


# The same ones for all models, whatever theirs are.
_IN_TAGS = ThinkingMarks(before="<think>\n", after="\n</think>\n\n")
_ON_TERMINAL: dict[Think, ThinkingMarks] = {
    "show": _IN_TAGS,
    "dim": ThinkingMarks(_DIM, f"{_PLAIN}\n\n", _PLAIN),
    "hide": ThinkingMarks("thinking ...", _ERASE, _ERASE),
}
_ELSEWHERE: dict[Think, ThinkingMarks] = {
    "show": _IN_TAGS,
    "dim": _IN_TAGS,
    "hide": ThinkingMarks(),
}


class Display:
    """Writes one answer; a context manager, which ends the line.

    Args:
        out: where to; None: nowhere.
        escapes: whether `out` understands escape sequences. Otherwise what would be dimmed
            stands in tags.
    """

    def __init__(self, out: TextIO | None, think: Think, *, escapes: bool) -> None:
        self._out = out
        self._marks = (_ON_TERMINAL if escapes else _ELSEWHERE)[think]
        self._hides = think == "hide"
        self._thinks = False

    def show(self, text: str, *, thinking: bool) -> None:
        """Writes a piece of text."""
        if thinking != self._thinks:
            self._write(self._marks.before if thinking else self._marks.after)
            self._thinks = thinking
        if not (thinking and self._hides):
            self._write(text)

    def __enter__(self) -> Display:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thinks:
            self._write(self._marks.broken_off)
        if kind is None or issubclass(kind, Exception):  # the message after Ctrl-C ends the line
            self._write("\n")

    def _write(self, text: str) -> None:
        if self._out is not None:
            self._out.write(text)
            self._out.flush()


def stdout_display(think: Think, *, silent: bool) -> Display:
    """A display on stdout, as that is; a `silent` one writes nothing."""
    escapes = sys.stdout.isatty() and settings().escapes
    return Display(None if silent else sys.stdout, think, escapes=escapes)
