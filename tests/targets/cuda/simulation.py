"""Models on the simulated device: compiled as for a GPU, but for the binaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ingot.artifact.launches import BuiltLaunches, decode_launches, encode_built
from ingot.artifact.reader import Artifact
from ingot.artifact.target import Target
from ingot.compiler.compile import compile_model
from ingot.compiler.options import CompileOptions
from ingot.models.model_dir import ModelDir
from ingot.runtime.devices import EXECUTORS
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.cuda.executor import CudaExecutor
from ingot.runtime.llm import LLM
from ingot.targets.cuda import kind, toolchain
from ingot.targets.cuda.simulated import SimulatedDriver
from tests.targets.cuda.sketches import sketch

TARGET = "cuda:sm_90"
FLAGS = frozenset({"sm_90"})


class SimulatedExecutor(CudaExecutor):
    """The executor of GPUs, on the simulated device."""

    def __init__(self, artifact: Artifact, **options: Any) -> None:
        super().__init__(artifact, **options, driver=type(self).make_driver())

    make_driver: Callable[[], Driver] = SimulatedDriver


def sketch_all(folder: Path, out: Path, target: Target) -> None:
    """Takes the place of `toolchain.build`."""
    launches = decode_launches((folder / "launches.json").read_bytes())
    (out.parent / "none.cubin").write_bytes(b"")
    binaries = tuple(map(sketch, launches.kernels))
    out.write_bytes(encode_built(BuiltLaunches(launches=launches, binaries=binaries)))


@contextmanager
def sketching() -> Iterator[None]:
    """Compiles build no binaries for GPUs here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "build", sketch_all)
        patch.setattr(kind, "tools_of", lambda target: SimpleNamespace(versions={}))
        yield


def compile_sketch(
    model_dir: Path, out: Path, targets: Sequence[str] = (TARGET,), **options: Any
) -> Path:
    """An artifact for the simulated device."""
    with sketching():
        compile_model(
            ModelDir.open(model_dir), out, CompileOptions(targets=tuple(targets), **options)
        )
    return out


@contextmanager
def simulated(
    path: Path, *, driver: Callable[[], Driver] = SimulatedDriver, **options: Any
) -> Iterator[LLM]:
    """An artifact, opened on the simulated device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedExecutor, "make_driver", driver)
        patch.setitem(EXECUTORS, "cuda", f"{__name__}:SimulatedExecutor")
        with LLM(Artifact.open(path, flags=FLAGS), **options) as llm:
            yield llm
