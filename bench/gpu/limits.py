"""What the card reaches in this run: the limits that figures stand beside."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from bench.gpu.setting import Setting

COPY_BYTES = 4 << 30
SIZE = 8192  # rows and columns of both matrices
ROUNDS = 10


def limits(setting: Setting) -> None:
    """Bandwidth of a copy, in bytes read and written, and operations of a matrix product."""
    setting.report.note(bytes_per_second=bandwidth(COPY_BYTES, _copy_seconds()))
    setting.report.note(operations_per_second=2 * SIZE**3 / _product_seconds())


def _copy_seconds() -> float:
    import torch

    source = torch.randint(0, 255, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return timed(lambda: target.copy_(source))


def _product_seconds() -> float:
    import torch

    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return timed(lambda: torch.mm(a, b, out=out))


def bandwidth(nbytes: int, seconds: float) -> float:
    """Of a copy, which reads and writes them all."""
    return 2 * nbytes / seconds


def timed(act: Callable[[], object]) -> float:
    """Seconds that the device takes, the median of some rounds after a few that warm it up."""
    import torch

    for _ in range(3):
        act()
    found: list[float] = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        act()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return median(found)
