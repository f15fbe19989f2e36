"""Bound on the threads of PyTorch's operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Runs operations of this thread, and of those that it starts, on so many threads.

    Threads of an operation wait for one another by spinning: on two processors with other work on
    them that has taken four times the processor time.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
