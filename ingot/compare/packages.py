"""Packages that only some sides need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ingot.errors import UsageError
from ingot.version import DISTRIBUTION


@contextmanager
def needed(package: str, extra: str, by: str) -> Iterator[None]:
    """Imports a package inside, which comes with an extra; `by` says what needs it.

    Raises UsageError where it is not installed or broken.
    """
    try:
        yield
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == package
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UsageError(
            f"{package} {'is not installed' if absent else f'cannot be imported: {reason}'}",
            hint=f"{by} needs it: pip install '{DISTRIBUTION}[{extra}]'",
        ) from error
