"""How this ingot starts another process of its own."""

from __future__ import annotations

import ctypes
import signal
import sys
from contextlib import suppress
from pathlib import Path

import ingot

_PR_SET_PDEATHSIG = 1
_ROOT = str(Path(ingot.__file__).parent.parent)


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs `main` of a module of this same package, wherever it lies.

    The folder that the process starts in has no say in what is imported.
    """
    code = (
        f"import sys; {_ROOT!r} in sys.path or sys.path.insert(0, {_ROOT!r}); "
        f"from {module} import main; sys.exit(main())"
    )
    return [sys.executable, "-P", "-c", code, *arguments]


def tie_to_parent() -> None:
    """Has this process killed when the thread that started it ends, whatever it does then."""
    with suppress(OSError, AttributeError):  # another system than Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_of(code: int) -> str:
    """How a process ended, in words, by its return code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a signal without a name
        return f"was killed by signal {-code}"
