"""The first import of PyTorch, which no signal may interrupt."""

from __future__ import annotations

from ingot.signals import signals_held


def import_torch() -> None:
    """Imports PyTorch, which is installed.

    An exception that a signal raises amid the import would pass through its C++ code. That ends the
    process on the spot, with compilers and files left behind.
    """
    with signals_held():
        import torch  # noqa: F401
