"""Builds that run ahead of the tests that need them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests.targets.cpu.native import workers
from tests.targets.cpu.programs import program

HERE = Path(__file__).parent

torch.set_num_threads(1)  # what references compute here is too small to share


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compilers begin with what the chosen tests will ask for, in their order."""
    if not session.config.option.collectonly:
        for item in session.items:
            if item.path.parent == HERE and hasattr(item, "callspec"):
                with suppress(Exception):  # the test that needs it will say what is wrong
                    start(item)


def start(item: pytest.Function) -> None:
    parameters = item.callspec.params
    if "kind" in parameters:
        unit = getattr(item.module, "unit", None)
        if unit is None:
            program(parameters["kind"], parameters["target"])
        else:
            unit(parameters["kind"], parameters["target"]).start()


def pytest_sessionfinish() -> None:
    workers().shutdown(cancel_futures=True)
