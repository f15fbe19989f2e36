"""Which targets a model directory is compiled for, by the device that is to run it."""

from __future__ import annotations

import pytest

from ingot.artifact import device
from ingot.artifact.gpu import Gpu
from ingot.artifact.host import host_flags
from ingot.compiler.choose_targets import check_packages, for_device, resolve_target
from ingot.compiler.options import CompileOptions
from ingot.errors import IncompatibleHostError, ToolchainError, UsageError
from ingot.targets.cpu.levels import native_target
from ingot.targets.cuda import kind, levels

GPUS = (Gpu(0, (9, 0)), Gpu(1, (8, 9)), Gpu(2, (7, 5)))


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "load_library", lambda: object())
    for module in (device, levels):
        monkeypatch.setattr(module, "find_gpus", lambda library=None: GPUS)


@pytest.mark.parametrize(
    ("name", "target"), [("cuda", "cuda:sm_90"), ("cuda:0", "cuda:sm_90"), ("cuda:1", "cuda:sm_80")]
)
def test_a_gpu_gets_its_own_target_and_the_other_options_stay(gpus, name, target) -> None:
    assert for_device(name) == CompileOptions(targets=target)
    wanted = CompileOptions(dtype="float32", max_num_seqs=3)
    assert for_device(name, wanted) == CompileOptions(
        targets=target, dtype="float32", max_num_seqs=3
    )


@pytest.mark.parametrize("name", ["auto", "cpu"])
@pytest.mark.parametrize("options", [None, CompileOptions(dtype="float32")])
def test_without_a_gpu_that_is_named_nothing_changes(gpus, name, options) -> None:
    assert for_device(name, options) is options


def test_a_gpu_that_nothing_is_built_for_is_refused(gpus) -> None:
    with pytest.raises(IncompatibleHostError, match=r"GPU cuda:2, sm_75") as caught:
        for_device("cuda:2")
    assert "sm_80, sm_90, sm_100" in caught.value.hint


def test_a_gpu_that_is_not_there_is_refused(gpus, monkeypatch) -> None:
    with pytest.raises(IncompatibleHostError, match="no GPU cuda:3: the NVIDIA driver shows 3"):
        for_device("cuda:3")
    monkeypatch.setattr(device, "load_library", lambda: None)
    with pytest.raises(IncompatibleHostError, match="no NVIDIA driver is installed"):
        for_device("cuda")


@pytest.mark.parametrize("name", ["gpu", "cuda:x", None])
def test_an_unknown_device_is_refused(name) -> None:
    with pytest.raises(UsageError, match="device is"):
        for_device(name)


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("cuda:1", ("cpu:portable", "cuda:sm_80")),
        ("cuda", ("cuda:native",)),
        ("cpu", ("cuda:sm_90", "cpu:native")),
        ("auto", ("cuda:sm_100",)),  # the artifact may be for another machine
    ],
)
def test_targets_that_are_named_are_kept(gpus, name, targets) -> None:
    options = CompileOptions(targets=targets)
    assert for_device(name, options, named=True) is options


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("cuda:1", ("cuda:sm_90", "cpu:native")),
        ("cuda:1", ("cuda:native",)),
        ("cpu", ("cuda:sm_90",)),
    ],
)
def test_targets_that_are_named_and_none_of_which_fits_are_refused(gpus, name, targets) -> None:
    """Before a compile, which can take minutes."""
    with pytest.raises(UsageError, match="runs none of the targets") as caught:
        for_device(name, CompileOptions(targets=targets), named=True)
    assert targets[0] in caught.value.found and "Leave the targets out" in caught.value.hint


def test_native_targets_are_those_of_this_host(gpus) -> None:
    assert resolve_target("cuda:native").name == "cuda:sm_90"
    assert resolve_target("cpu:native") == native_target(host_flags())


def test_triton_is_looked_for_where_a_target_needs_it(monkeypatch) -> None:
    asked = []

    def missing() -> None:
        asked.append(1)
        raise ToolchainError("Triton is not installed")

    monkeypatch.setattr(kind, "find_triton", missing)
    check_packages(("cpu:native", "cpu:portable"))
    assert not asked
    with pytest.raises(ToolchainError, match="Triton is not installed"):
        check_packages(("cpu:native", "cuda:sm_90"))
