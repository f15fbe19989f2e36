"""The kernels of a GPU, one by one on the simulated device, against the references."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ingot.artifact.launches import Binary, KernelSpec
from ingot.artifact.reader import Artifact
from ingot.compare.bisect import Finding, Walk
from ingot.compare.kernel_check import run_kernels
from ingot.compare.steps import steps_of
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.model_dir import ModelDir
from ingot.runtime.devices import EXECUTORS
from ingot.runtime.devices.cuda.driver import Driver
from ingot.targets.cuda.simulated import Kernel, SimulatedDriver
from tests.support.tiny_models import save_random
from tests.targets.cuda import simulation
from tests.targets.cuda.simulation import FLAGS, SimulatedExecutor, compile_sketch

OPTIONS = {"max_model_len": 64, "max_num_seqs": 8, "max_num_batched_tokens": 32}
PROMPTS = [[(7 * i) % 256 for i in range(18)], [5]]


@contextmanager
def on_device(driver: Callable[[], Driver]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedExecutor, "make_driver", driver)
        patch.setitem(EXECUTORS, "cuda", f"{simulation.__name__}:SimulatedExecutor")
        yield


def findings(model: Path, path: Path, driver: Callable[[], Driver]) -> list[Finding]:
    artifact = Artifact.open(path, flags=FLAGS)
    config = registry.load_config(ModelDir.open(model))
    module = registry.build(config, max_model_len=64)
    with on_device(driver), Checkpoint.open(ModelDir.open(model), config, module) as checkpoint:
        kernels = run_kernels(
            artifact, artifact.target, steps_of(PROMPTS, artifact.manifest.limits)
        )
        return [each.finding for each in Walk(kernels, read=checkpoint.read).findings()]


@pytest.mark.cases(thorough=1)
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen3", {"dtype": "bfloat16"}),
        ("mistral", {"dtype": "float32", "kv_dtype": "int8"}),
        ("gpt2", {"dtype": "float16"}),
        ("llama", {"dtype": "bfloat16", "quantize": "int8", "group_size": "32"}),
    ],
)
def test_right_kernels_give_no_finding(
    family: str, options: dict[str, str], tmp_path: Path
) -> None:
    model = save_random(family, tmp_path / "model", tokenizer=True)
    path = compile_sketch(model, tmp_path / "a.ingot", **options, **OPTIONS)
    assert findings(model, path, SimulatedDriver) == []


class OtherNorms(SimulatedDriver):
    """Its norms have another epsilon than the plan."""

    def load(self, spec: KernelSpec, binary: Binary, code: bytes) -> Kernel:
        changed = {"EPS": 0.05} if "EPS" in spec.constants and "norm" in spec.function else {}
        return super().load(replace(spec, constants={**spec.constants, **changed}), binary, code)


@pytest.mark.thorough
def test_a_kernel_that_computes_something_else_is_named(tmp_path: Path) -> None:
    """One of a kernel's own: the plan, which the launches were made of, says the right number."""
    model = save_random("llama", tmp_path / "model", tokenizer=True)
    path = compile_sketch(model, tmp_path / "a.ingot", dtype="float32", **OPTIONS)
    found = findings(model, path, OtherNorms)
    assert found and {each.where for each in found} == {"kernel"}
    assert (found[0].origin, found[0].op) == ("model.layers.0.input_layernorm", "rms_norm")
    assert all("norm" in each.op for each in found)
