"""The process that compiles a model for a server, made up of a shell."""

from __future__ import annotations

import asyncio

import pytest

from ingot.serve.registry import compiling
from tests.serve.jobs import has_ended
from tests.support.until import until


def test_a_compile_that_is_cancelled_ends_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = ("sh", "-c", "sleep 600 & echo $! >&2; wait")
    monkeypatch.setattr(compiling, "command", lambda *_: shell)
    told: list[str] = []

    async def main() -> None:
        compile = asyncio.create_task(compiling.artifact_of("a/model", "cpu", told.append))
        await until(lambda: bool(told))
        compile.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(compile, 30)

    asyncio.run(main())
    assert has_ended(int(told[0]))
