"""A model directory on a GPU: compiled for it once, then found in the cache. No binaries."""

from __future__ import annotations

from pathlib import Path

import pytest

import ingot
from ingot import SamplingParams, compiling
from ingot.artifact import device
from ingot.artifact.gpu import Gpu
from ingot.cli.main import main
from ingot.runtime.devices import EXECUTORS
from tests.support.tiny_models import save_random
from tests.targets.cuda import simulation
from tests.targets.cuda.simulation import sketching

PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)


@pytest.mark.thorough
def test_a_model_directory_runs_on_the_gpu_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(device, "load_library", lambda: object())
    monkeypatch.setattr(device, "find_gpus", lambda library=None: (Gpu(0, (9, 0)), Gpu(1, (8, 6))))
    monkeypatch.setattr(compiling, "golden_error", lambda folder: None)
    monkeypatch.setitem(EXECUTORS, "cuda", f"{simulation.__name__}:SimulatedExecutor")
    folder = save_random("llama", tmp_path / "model", tokenizer=True)
    options = {"dtype": "float32", "compile_options": {"max_model_len": 32}}
    found, targets = [], []
    with sketching():
        for name in ("cuda:1", "cuda:1", "cuda", "cpu"):
            with ingot.LLM(folder, device=name, **options) as llm:
                found.append(llm.generate([[1, 2, 3]], PARAMS)[0].outputs[0].token_ids)
                targets.append(llm.artifact.target.name)
    assert targets[:3] == ["cuda:sm_80", "cuda:sm_80", "cuda:sm_90"]
    assert targets[3].startswith("cpu:")
    assert found == found[:1] * 4
    assert capsys.readouterr().err.count("compiling") == 3
    with sketching():
        command = ["run", str(folder), "x", "--max-tokens", "1", "--device", "cuda:0"]
        assert main(command) == 0
    assert capsys.readouterr().err.count("compiling") == 1  # by the command's own options
