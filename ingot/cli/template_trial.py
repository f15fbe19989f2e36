"""Tries the chat template on stdin in a process that may be ended; prints what is wrong with it."""

from __future__ import annotations

import resource
import sys

from jinja2.exceptions import SecurityError

from ingot.errors import RequestError
from ingot.runtime.chat import ChatTemplate

MAX_SECONDS = 2  # of a processor
MAX_MEMORY_BYTES = 1 << 30
MESSAGES = [{"role": "user", "content": "Hello"}]


def main() -> int:
    """A refusal of these very messages is no fault: the template may want others."""
    source = sys.stdin.buffer.read().decode()
    _limit(
        resource.RLIMIT_CPU, int(resource.getrusage(resource.RUSAGE_SELF).ru_utime) + MAX_SECONDS
    )
    _limit(resource.RLIMIT_AS, MAX_MEMORY_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    try:
        template = ChatTemplate(source)
    except RequestError as error:
        print(error.found)
        return 0
    try:
        template.render(MESSAGES, bos_token="", eos_token="")
    except RequestError as error:
        print(_fault(error))
    return 0


def _fault(error: RequestError) -> str:
    """Reason of a refusal that lies in the template itself; empty if it lies elsewhere."""
    cause = error.__cause__
    if isinstance(cause, MemoryError):
        return f"it takes more than {MAX_MEMORY_BYTES >> 20} MiB, for a message of one word"
    if isinstance(cause, RecursionError):
        return "it calls itself without an end"
    return error.found if cause is None or isinstance(cause, SecurityError) else ""


def _limit(kind: int, most: int) -> None:
    """Lowers a limit, unless it is lower already."""
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    sys.exit(main())
