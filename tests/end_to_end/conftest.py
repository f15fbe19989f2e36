"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.end_to_end.support import Compile, Compiled, compile_case
from tests.support.build_once import build_once, built_once


@pytest.fixture(autouse=True)
def _built_once(builds: Path) -> Iterator[None]:
    """What the tests compile in this process is built once, too."""
    with built_once(builds):
        yield


@pytest.fixture(scope="session")
def compiled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, builds: Path
) -> Iterator[Compiled]:
    """Compiles a case, in a process of its own: two of them work ahead of the tests."""
    folder = tmp_path_factory.mktemp("compiled")
    started: dict[Compile, Future[tuple[Path, Path]]] = {}
    with ProcessPoolExecutor(
        2, get_context("spawn"), initializer=build_once, initargs=(builds,)
    ) as processes:

        def start(case: Compile) -> Future[tuple[Path, Path]]:
            if case not in started:
                place = folder / str(len(started))
                started[case] = processes.submit(compile_case, case, place)
            return started[case]

        for item in request.session.items:
            if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
                for case in item.callspec.params.get("cases", ()):
                    start(case)
        yield lambda case: start(case).result()
        processes.shutdown(cancel_futures=True)
