"""A program on a pseudo-terminal: what a user types into it, and what the user sees."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

PATIENCE = 300  # seconds until a program that says nothing more has failed


class Terminal:
    """Starts a program; a context manager, which ends it.

    `piped` sends its stdout to a pipe, and so leaves stdin and stderr on the terminal.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        columns: int = 80,
        piped: bool = False,
    ) -> None:
        self._screen, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._seen = ""
        self.process = subprocess.Popen(
            command,
            stdin=end,
            stdout=subprocess.PIPE if piped else end,
            stderr=end,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(end)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self._screen)

    def type(self, text: str) -> None:
        """Presses keys; a line ends with \\r."""
        os.write(self._screen, text.encode())

    def interrupt(self) -> None:
        """Presses Ctrl-C once the program waits for something.

        A signal that comes when Python is about to wait for keys is seen with the next key only.
        """
        state = Path(f"/proc/{self.process.pid}/stat")
        while state.read_text().rpartition(")")[2].split()[0] in "RD":
            os.sched_yield()
        self.type("\x03")

    def until(self, text: str) -> str:
        """What is written up to this text, from where the last call ended."""
        while text not in self._seen:
            new = self._read()
            assert new, f"no {text!r} after {self._seen!r}"
            self._seen += new
        shown, found, self._seen = self._seen.partition(text)
        return shown + found

    def end(self) -> tuple[int, str]:
        """The exit code and the rest of what is written, once the program has ended."""
        while new := self._read():
            self._seen += new
        return self.process.wait(PATIENCE), self._seen

    def _read(self) -> str:
        ready, _, _ = select.select([self._screen], [], [], PATIENCE)
        assert ready, f"nothing more after {self._seen!r}"
        try:
            return os.read(self._screen, 65536).decode(errors="replace")
        except OSError:  # nobody writes to the terminal any more
            return ""
