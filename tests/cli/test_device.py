"""`--device` on hosts without a GPU: one line and a hint, before anything else is done."""

from __future__ import annotations

import pytest

import ingot
from ingot.artifact import device
from ingot.artifact.gpu import Gpu
from ingot.cli.main import main
from ingot.compiler.options import CompileOptions
from ingot.errors import IncompatibleHostError, IngotError, ToolchainError
from ingot.targets.cuda import kind


@pytest.mark.parametrize("verb", [("run", "m", "x"), ("verify", "m")])
def test_a_gpu_without_a_driver_is_refused_at_once(verb, monkeypatch, capsys):
    """`m` is not even looked for."""
    monkeypatch.setattr(device, "load_library", lambda: None)
    assert main([*verb, "--device", "cuda"]) == 3
    first, *hint = capsys.readouterr().err.splitlines()
    assert first == ("error: there is no GPU cuda:0: no NVIDIA driver is installed (libcuda.so.1)")
    assert len(hint) == 1 and 'device "cpu"' in hint[0]


def test_an_unknown_device_is_refused_at_once(capsys):
    assert main(["run", "m", "x", "--device", "tpu"]) == 2
    assert "device is 'tpu'" in capsys.readouterr().err


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model directory on a host with one H100, and the options that it is compiled with."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(device, "load_library", lambda: object())
    monkeypatch.setattr(device, "find_gpus", lambda library=None: (Gpu(0, (9, 0)),))
    compiled = []

    def compile_model(source, out, options, **_):
        compiled.append(options)
        raise IngotError("compiled")

    monkeypatch.setattr("ingot.compiler.compile.compile_model", compile_model)
    return folder, compiled


@pytest.mark.parametrize("verb", [("run", "{}", "x"), ("verify", "{}")])
def test_a_model_directory_is_compiled_for_the_gpu_that_is_named(model, verb, capsys):
    folder, compiled = model
    main([part.format(folder) for part in verb] + ["--device", "cuda:0"])
    assert compiled == [CompileOptions(targets="cuda:sm_90")]


@pytest.mark.parametrize("kind", [ingot.LLM, ingot.AsyncLLM])
def test_python_and_the_command_line_compile_for_the_same(model, kind):
    folder, compiled = model
    for options in (
        {},
        {"device": "cpu"},
        {"device": "cuda"},
        {"device": "cuda", "dtype": "bfloat16"},
    ):
        with pytest.raises(IngotError, match="compiled"):
            kind(folder, **options)
    assert compiled == [
        CompileOptions(),
        CompileOptions(),
        CompileOptions(targets="cuda:sm_90"),
        CompileOptions(targets="cuda:sm_90", dtype="bfloat16"),
    ]


def test_targets_of_compile_options_are_kept(model):
    folder, compiled = model
    both = {"targets": ("cpu:portable", "cuda:sm_90")}
    with pytest.raises(IngotError, match="compiled"):
        ingot.LLM(folder, device="cuda", compile_options=both)
    assert compiled == [CompileOptions(**both)]


def test_a_gpu_that_nothing_is_built_for_costs_no_compile(model, monkeypatch, capsys):
    folder, compiled = model
    monkeypatch.setattr(device, "find_gpus", lambda library=None: (Gpu(0, (7, 5)),))
    with pytest.raises(IncompatibleHostError, match="sm_75"):
        ingot.LLM(folder, device="cuda")
    assert main(["run", str(folder), "x", "--device", "cuda"]) == 3
    assert "does not build for the GPU cuda:0, sm_75" in capsys.readouterr().err
    assert compiled == []


def test_without_triton_its_extra_is_named_before_the_compile(model, monkeypatch, capsys):
    folder, compiled = model

    def missing():
        raise ToolchainError("Triton is not installed", hint="pip install 'ingot-lm[cuda]'")

    monkeypatch.setattr(kind, "find_triton", missing)
    assert main(["run", str(folder), "x", "--device", "cuda"]) != 0
    said = capsys.readouterr().err
    assert "Triton is not installed" in said and "ingot-lm[cuda]" in said
    assert compiled == []
