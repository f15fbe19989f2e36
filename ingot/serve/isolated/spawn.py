"""Spawning of further processes of this ingot."""

from __future__ import annotations

import ctypes
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import ingot
from ingot.errors import ResourceError

_PR_SET_PDEATHSIG = 1
CHILD = "ingot.serve.isolated.child"
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


# An engine process and our end of its socket, which nobody else can reach.
Spawned = tuple[subprocess.Popen[bytes], socket.socket]
Spawn = Callable[[], Spawned]


def spawned() -> Spawned:
    """A new engine process, which waits for what to open. Raises ResourceError."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            child = subprocess.Popen(
                command(CHILD, str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,
                process_group=0,  # Ctrl-C in a terminal is the front's to handle
            )
        except OSError as error:
            ours.close()
            raise ResourceError(
                f"no engine process can be started: {error.strerror}",
                hint="Raise the limits of processes and open files, or free some memory.",
            ) from error
    ours.setblocking(False)
    return child, ours


class Spares:
    """Engine processes that are begun before it is known what they open.

    They import what they need while their front does the same. A context manager: what nobody
    took is ended.
    """

    def __init__(self, count: int) -> None:
        self._spares = deque(spawned() for _ in range(count))

    def take(self) -> Spawned:
        """A spare process while there is one, then a new one. Raises ResourceError."""
        while self._spares:
            child, connection = self._spares.popleft()
            if child.poll() is None:
                return child, connection
            connection.close()
        return spawned()

    def __enter__(self) -> Spares:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends what nobody took. May be called twice."""
        while self._spares:
            child, connection = self._spares.popleft()
            connection.close()
            child.kill()
            child.wait()


def tie_to_parent() -> None:
    """Has this process killed when the thread that started it ends, whatever it does then."""
    with suppress(OSError, AttributeError):  # another system than Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_of(code: int) -> str:
    """Describes the end of a process by its return code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a signal without a name
        return f"was killed by signal {-code}"
