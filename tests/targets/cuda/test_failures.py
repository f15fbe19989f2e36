"""Every call of the driver is made to fail: when a model is opened, and in each of its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ingot import LLM, SamplingParams
from ingot.artifact.reader import Artifact
from ingot.errors import DeviceError, IncompatibleHostError, IngotError, ResourceError
from ingot.runtime.config import EngineConfig
from ingot.runtime.devices.cuda.driver import Driver
from tests.support.tiny_models import save_random
from tests.targets.cuda.failing import Failing, IdleDriver
from tests.targets.cuda.simulation import compile_sketch, simulated

pytestmark = pytest.mark.thorough

METHODS = (
    "allocate", "host_memory", "release", "upload", "download", "load", "launch", "begin_capture",
    "end_capture", "replay", "mark", "wait", "synchronize", "free_bytes", "cuda_version",
)  # fmt: skip
OPENING = (
    "allocate", "host_memory", "release", "upload", "load", "mark", "wait", "free_bytes",
    "cuda_version",
)  # fmt: skip
STEPPING = (
    "upload", "download", "launch", "begin_capture", "end_capture", "replay", "mark", "wait",
)  # fmt: skip
PARAMS = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, detokenize=False)
PROMPTS = [[1, 2, 3], [4, 5]]
# What makes a step copy more: edits and scores of a draw, logits for the host or for later, masks.
ASKED: dict[str, SamplingParams] = {
    "edits": replace(PARAMS, frequency_penalty=0.5, logit_bias={7: 1.0}, min_tokens=2),
    "scores": replace(PARAMS, logprobs=2, prompt_logprobs=1),
    "kept": PARAMS,
    "processors": replace(PARAMS, logits_processors=[lambda token_ids, logits: logits]),
    "grammars": replace(PARAMS, structured_outputs={"regex": "[^a]{9}"}, ignore_eos=False),
}
LOST = DeviceError("cuStreamSynchronize failed: CUDA_ERROR_ILLEGAL_ADDRESS")


def on(driver: Failing, artifact: Path, **options: Any) -> AbstractContextManager[LLM]:
    """The artifact, opened on that device."""
    return simulated(artifact, driver=lambda: cast(Driver, driver), **options)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the CPU, too."""
    folder = tmp_path_factory.mktemp("cuda")
    model_dir = save_random("llama", folder / "model", tokenizer=True)
    return compile_sketch(
        model_dir, folder / "a.ingot", ("cuda:sm_90", "cpu:native"), dtype="float32",
        max_model_len=64, max_num_seqs=4, max_num_batched_tokens=32,
    )  # fmt: skip


@pytest.fixture(scope="module")
def calls(artifact: Path) -> tuple[Counter[str], Counter[str]]:
    """How often each method is called until a model is open, and until it has served requests."""
    return counted(artifact, PARAMS)


def counted(
    artifact: Path, params: SamplingParams, config: EngineConfig | None = None
) -> tuple[Counter[str], Counter[str]]:
    driver = Failing(IdleDriver(), "", 0, LOST)
    with on(driver, artifact, config=config) as llm:
        opened = Counter(driver.driver.calls)
        llm.generate(PROMPTS, params)
        served = Counter(driver.driver.calls)
    return opened, served


def test_each_call_is_made(calls: tuple[Counter[str], Counter[str]]) -> None:
    """Or there would be none to fail."""
    opened, served = calls
    assert all(opened[name] for name in OPENING)
    assert all(served[name] > opened[name] for name in STEPPING)
    assert set(served) <= {*METHODS, "close"}


@pytest.mark.cases(thorough=9)
@pytest.mark.parametrize("method", OPENING)
@pytest.mark.parametrize(
    "error", [LOST, ResourceError("out of memory"), IncompatibleHostError("no binary for it")]
)
def test_opening_fails_with_the_error_and_frees_everything(
    artifact: Path, calls: tuple[Counter[str], Counter[str]], method: str, error: IngotError
) -> None:
    for number in range(calls[0][method]):
        device = IdleDriver()
        driver = Failing(device, method, number, error)
        with (
            pytest.raises(type(error)) as raised,
            on(driver, artifact),
        ):
            pass
        assert raised.value is error
        assert not device.open


def failures(calls: tuple[Counter[str], Counter[str]], method: str) -> Iterator[Failing]:
    """A driver for each call of a method in steps."""
    opened, served = calls
    for number in range(opened[method], served[method]):
        yield Failing(IdleDriver(), method, number, LOST)


@pytest.mark.cases(thorough=3)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("method", STEPPING)
def test_a_step_that_fails_ends_that_model_alone(
    artifact: Path, calls: tuple[Counter[str], Counter[str]], method: str, overlap: bool
) -> None:
    config = EngineConfig(overlap=overlap)
    for driver in failures(calls, method):
        with on(driver, artifact, config=config) as llm:
            with pytest.raises(DeviceError) as raised:
                llm.generate(PROMPTS, PARAMS)
            assert raised.value is LOST
            count = len(driver.driver.calls)
            with pytest.raises(DeviceError, match="in an earlier step: cuStream") as said:
                llm.generate(PROMPTS, PARAMS)
            assert "open it again" in str(said.value)
            with pytest.raises(DeviceError, match="in an earlier step"):
                llm.logits([1, 2])
            assert len(driver.driver.calls) == count  # nothing is asked of it any more
            assert llm.counters().num_running == llm.counters().num_waiting == 0
        assert not driver.driver.open


@pytest.mark.cases(thorough=2)
@pytest.mark.parametrize("name", ASKED)
def test_a_copy_that_fails_ends_that_model_alone(
    artifact: Path, calls: tuple[Counter[str], Counter[str]], name: str
) -> None:
    """Each of them makes steps copy other things than usual, and every copy fails once."""
    params, config = ASKED[name], EngineConfig(logits_cache_bytes=(name == "kept") << 20)
    found = counted(artifact, params, config)
    ours, usual = (served - opened for opened, served in (found, calls))
    assert (ours["upload"], ours["download"]) != (usual["upload"], usual["download"])
    for method in ("upload", "download"):
        for driver in failures(found, method):
            with on(driver, artifact, config=config) as llm:
                with pytest.raises(DeviceError) as raised:
                    llm.generate(PROMPTS, params)
                assert raised.value is LOST
                with pytest.raises(DeviceError, match="in an earlier step: cuStream"):
                    llm.generate(PROMPTS, PARAMS)
                assert llm.counters().num_running == llm.counters().num_waiting == 0
            assert not driver.driver.open


def test_models_on_the_cpu_run_beside_one_that_failed(artifact: Path) -> None:
    driver = Failing(IdleDriver(), "launch", 2, LOST)
    with (
        on(driver, artifact) as llm,
        LLM(Artifact.open(artifact, device="cpu")) as other,
    ):
        with pytest.raises(DeviceError):
            llm.generate(PROMPTS, PARAMS)
        assert len(other.generate(PROMPTS, PARAMS)) == len(PROMPTS)
        llm.close()
        assert len(other.generate(PROMPTS, PARAMS)) == len(PROMPTS)


def test_a_stream_ends_with_the_error(artifact: Path) -> None:
    driver = Failing(IdleDriver(), "replay", 1, LOST)
    with on(driver, artifact) as llm:
        outputs = llm.stream([1, 2, 3], PARAMS)
        next(outputs)
        with pytest.raises(DeviceError):
            list(outputs)
