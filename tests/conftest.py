"""Fixtures that several rooms share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.support.hub import Hub

ROOT = Path(__file__).resolve().parent.parent
SHAKESPEARE = ROOT / "golden" / "models" / "shakespeare"


# A machine that is busy with something else is no fault of what is tested.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    """The first process of a test run makes the folder that all share, and removes it, unless it is
    given one.

    Where tests run side by side, each computes in one thread: torch would take all processors.
    """
    from tests.support.kept_builds import guard_kept_builds, kept_folder
    from tests.support.made_once import FOLDER, cache_folder
    from tests.support.times import Recorder, is_whole

    gc.disable()  # until tests are found, which makes no garbage

    # Before PyTorch imports Triton, whose own functions are interpreted or not from then on.
    os.environ["TRITON_INTERPRET"] = "1"

    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    elif FOLDER not in os.environ:
        folder = tempfile.mkdtemp(prefix="ingot-tests-")
        os.environ[FOLDER] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))

    # No test reads or fills the user's cache of compiled models; all share kernels.
    own = tempfile.mkdtemp(prefix="cache-", dir=os.environ[FOLDER])
    os.environ["INGOT_CACHE"] = str(cache_folder(Path(own) / "ingot"))
    guard_kept_builds()

    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Recorder(kept_folder(), whole=is_whole(config)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before pytest leaves out those that are not wanted."""
    from tests.support.core import mark_further

    mark_further(items)


def pytest_collection_finish() -> None:
    """Spares Python to look for garbage in what PyTorch and the tests have imported: it stays."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says which checks there were none of: those of pages are defined where there is a browser."""
    from tools.browser import find_chromium

    if find_chromium() is None:
        told = "NOT CHECKED: there is no Chromium here, so no page was looked at"
        terminalreporter.write_line(told, yellow=True)


def pytest_unconfigure() -> None:
    """Triton reports on stderr what nobody collected."""
    if "triton" in sys.modules:
        gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def all_threads() -> Iterator[None]:
    """Steps have all threads from the first on, whatever else the host does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ingot.runtime.devices.cpu.CpuExecutor.watches_host", False)
        yield


@pytest.fixture(autouse=True, scope="session")
def patient_compiler() -> Iterator[None]:
    """Grammars may take as long to compile as a busy machine needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ingot.runtime.structured.compiler.SECONDS", 60.0)
        yield


@pytest.fixture(autouse=True, scope="session")
def signals() -> Iterator[None]:
    """Signals as in a terminal. Background jobs of a shell and of nohup ignore some of them, and
    pass that on to their children."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def shakespeare_dir() -> Path:
    """The bundled trained model, in the layout of Hugging Face."""
    return SHAKESPEARE


@pytest.fixture(scope="session")
def shakespeare_artifact() -> Path:
    """The bundled model compiled for this host, once a test run; to change it, copy it."""
    import ingot
    from tests.support.made_once import made_once

    place = made_once(
        "shakespeare", lambda place: ingot.compile(SHAKESPEARE, place / "shakespeare.ingot")
    )
    return place / "shakespeare.ingot"


@pytest.fixture(scope="session")
def embedder_artifact() -> Path:
    """A tiny model that makes vectors of texts, compiled for this host, once a test run."""
    from tests.support.text_models import embedder

    return embedder()


@pytest.fixture(scope="session")
def reranker_artifact() -> Path:
    """A tiny model that scores pairs of texts, likewise."""
    from tests.support.text_models import reranker

    return reranker()


@pytest.fixture(autouse=True, scope="session")
def _wide_lines() -> None:
    """Lines are as long as in a pipe, whatever terminal the tests run in."""
    os.environ.pop("COLUMNS", None)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub on this machine, which this process takes for the real one, and an empty cache."""
    from huggingface_hub import constants

    from tests.support.hub import serve_hub

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with serve_hub() as hub:
        urls = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", urls)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield hub


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model directories of every kind: whole, in shards, tied."""
    from tests.support.tiny_models import save_random

    root = tmp_path_factory.mktemp("saved")
    save_random("llama", root / "single")
    save_random("llama", root / "sharded", shard_kilobytes=60)
    save_random("llama_tied", root / "tied")
    save_random("llama", root / "bfloat16", "bfloat16")
    save_random("llama", root / "float16", "float16")
    return root


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Gives a copy of one of them by name, to be damaged."""
    return lambda name: Path(shutil.copytree(saved / name, tmp_path / name))
