"""The first import of PyTorch, which no signal may interrupt."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType

from ingot.errors import CompileError

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def check_torch() -> None:
    """Raises CompileError where PyTorch is not installed."""
    if find_spec("torch") is None:
        hint = "Compiling needs it; running an artifact does not: pip install 'ingot-lm[compile]'"
        raise CompileError("torch is not installed", hint=hint)


def import_torch() -> None:
    """Imports PyTorch, which is installed.

    An exception that a signal raises amid the import would pass through its C++ code. That ends the
    process on the spot, with compilers and files left behind.
    """
    with signals_held():
        import torch  # noqa: F401


@contextmanager
def signals_held() -> Iterator[None]:
    """Lets the first signal that would raise an exception meanwhile do so when this is left."""
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    handlers = {number: signal.getsignal(number) for number in ENDING}
    held = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in held:
            signal.signal(number, note)
    except ValueError:  # not the main thread, in which no handler runs
        held = {}
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
