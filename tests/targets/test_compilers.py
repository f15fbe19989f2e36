"""Compilers that run side by side end together."""

from __future__ import annotations

from threading import Event

import pytest

from ingot.errors import ToolchainError
from ingot.targets import compilers
from ingot.targets.compilers import run_compiler, side_by_side


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_first_error_stops_the_others(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no Builder runs them, too, as in `ingot doctor`."""
    begun, ended = Event(), list[str]()
    monkeypatch.setattr(compilers, "usable_processors", lambda: 2)

    def fail() -> None:
        assert begun.wait(60)
        raise error

    def hang() -> None:
        begun.set()
        try:
            run_compiler(("sleep", "20"), 60)
            ended.append("by itself")
        except ToolchainError:
            ended.append("stopped")

    with pytest.raises(error):
        side_by_side([fail, hang])
    assert ended == ["stopped"]


def test_all_jobs_are_done() -> None:
    done: list[int] = []
    side_by_side([lambda n=n: done.append(n) for n in range(9)])  # type: ignore[misc]
    assert sorted(done) == list(range(9))
