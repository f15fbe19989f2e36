"""Compilers that run side by side end together."""

from __future__ import annotations

import pytest

from ingot.errors import ToolchainError
from ingot.targets.compilers import run_compiler, side_by_side


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_first_error_stops_the_others(error: type[BaseException]) -> None:
    """Where no Builder runs them, too, as in `ingot doctor`."""
    ended = []

    def fail() -> None:
        raise error

    def hang() -> None:
        try:
            run_compiler(("sleep", "20"), 60)
            ended.append("by itself")
        except ToolchainError:
            ended.append("stopped")

    with pytest.raises(error):
        side_by_side([fail, hang])
    assert ended in ([], ["stopped"])


def test_all_jobs_are_done() -> None:
    done: list[int] = []
    side_by_side([lambda n=n: done.append(n) for n in range(9)])  # type: ignore[misc]
    assert sorted(done) == list(range(9))
