"""The public face: lazy names, the settings, and the cache of compiled model directories."""

from __future__ import annotations

import gc
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import ingot
from ingot import compiled, compiling
from ingot.artifact.reader import Artifact
from ingot.compiler.options import CompileOptions, Report
from ingot.errors import ArtifactError, ResourceError, UsageError
from ingot.imports import imported
from ingot.models.model_dir import ModelDir
from ingot.settings import UnknownVariableWarning, settings
from tests.runtime.fake_model import greedy, write_fake

ROOT = Path(__file__).resolve().parents[2]
GREEDY = ingot.SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {statement}; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(out.stdout.split())


def test_importing_ingot_loads_nothing_heavy():
    heavy = {"numpy", "torch", "tokenizers", "jinja2", "msgspec", "safetensors", "argparse"}
    assert not heavy & loaded_after("import ingot")
    assert "ingot.errors" not in loaded_after("import ingot; ingot.__version__; dir(ingot)")


def test_the_runtime_loads_no_torch_and_what_it_needs_only_when_it_is_needed():
    modules = loaded_after("import ingot; ingot.LLM; ingot.SamplingParams")
    assert "numpy" in modules  # the control: it did load
    assert not {"torch", "tokenizers", "jinja2", "transformers", "asyncio"} & modules
    assert "concurrent.futures" not in modules
    # Neither what compiles and downloads, nor what GPUs, people and some calls need.
    rare = ("cache", "compiled", "compiling", "hub", "artifact.launches", "artifact.layer_graphs",
            "artifact.writer", "runtime.beam_search", "runtime.verify")  # fmt: skip
    assert not {f"ingot.{name}" for name in rare} & modules
    assert "asyncio" in loaded_after("import ingot; ingot.AsyncLLM")


def test_every_public_name_is_there_and_no_other():
    for name in ingot.__all__:
        assert getattr(ingot, name) is not None
        assert name in dir(ingot)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ingot.nonsense


def test_a_look_around_shows_public_names_only():
    assert sorted(ingot.__all__) == dir(ingot)


def test_settings_come_from_the_environment(tmp_path):
    env = {"INGOT_CACHE": str(tmp_path), "CXX": "clang++", "INGOT_DEBUG": "2"}
    read = settings(env)
    assert (read.cache_dir, read.cxx, read.debug) == (tmp_path, "clang++", 2)
    assert settings(env | {"INGOT_CXX": "g++"}).cxx == "g++"
    assert settings({"XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/ingot")
    assert settings({"XDG_CACHE_HOME": "x"}).cache_dir == Path.home() / ".cache" / "ingot"
    assert settings({"XDG_STATE_HOME": "/x"}).state_dir == Path("/x/ingot")
    assert settings({}).state_dir == Path.home() / ".local" / "state" / "ingot"
    assert settings({}).cxx is None and settings({}).debug == 0


def test_a_user_without_a_home_needs_one_for_the_cache_alone():
    read = settings({"INGOT_CACHE": "~no-such-user/cache"})
    assert read.debug == 0
    with pytest.raises(UsageError, match="no folder for the cache"):
        _ = read.cache_dir


def test_a_user_without_a_home_has_no_place_for_what_was_typed(monkeypatch):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31)  # has no entry in the list of users
    assert settings({}).state_dir is None


@pytest.mark.parametrize(
    ("environ", "escapes"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_who_gets_escape_sequences(environ, escapes):
    assert settings(environ).escapes is escapes


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("INGOT_CASHE", "INGOT_CACHE"),
        ("INGOT_CACHE_DIR", "INGOT_CACHE"),
        ("INGOT_DEBUG_PORT", None),
        ("INGOT_PORT", None),
        ("INGOT_", None),
    ],
)
def test_an_unknown_variable_warns_and_names_what_it_may_be_meant_for(name, near):
    with pytest.warns(UnknownVariableWarning, match=rf"no effect: {name}\b") as seen:
        read = settings({name: "tcp://10.0.0.1:80", "INGOT_DEBUG": "1"})
    assert read.debug == 1 and seen[0].filename == __file__
    meant = re.findall(r"did you mean (\w+)\?", str(seen[0].message))
    assert meant == ([near] if near else [])


def test_known_and_foreign_variables_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings({"INGOT_DEBUG": "1", "INGOTS": "x", "HOME": "/"})


@pytest.mark.parametrize("env", [{"INGOT_DEBUG": "6"}, {"INGOT_DEBUG": "on"}])
def test_a_wrong_setting_is_an_error_and_not_ignored(env):
    with pytest.raises(UsageError, match="INGOT_"):
        settings(env)


@pytest.fixture
def model_dir(tmp_path, monkeypatch):
    """A model directory that "compiles" to the fake artifact, and a list of the compiles."""
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "SOURCES", tmp_path / "sources")
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    compiles = []

    def compile_checked(source, out, options=None, progress=None):
        compiles.append((source, options))
        write_fake(out)
        manifest = Artifact.open(out).manifest
        return Report(artifact=out, manifest=manifest, seconds=1.0, stage_seconds={},
                      dtype_reason="", bytes_total=1, weight_bytes=1)  # fmt: skip

    monkeypatch.setattr(compiling, "compile_checked", compile_checked)
    return folder, compiles


def test_a_model_directory_is_compiled_once_and_stderr_says_so(model_dir, capsys):
    folder, compiles = model_dir
    for _ in range(2):
        with ingot.LLM(folder) as llm:
            assert llm.generate([[5]], GREEDY)[0].outputs[0].token_ids == greedy([5], 5)
    captured = capsys.readouterr()
    assert len(compiles) == 1
    assert captured.out == "" and captured.err.count("compiling") == 1


def test_another_model_or_other_options_are_another_artifact(model_dir):
    folder, compiles = model_dir
    first = compiled.resolve(folder)
    assert compiled.resolve(folder, CompileOptions()) == first
    assert compiled.resolve(folder, CompileOptions(dtype="float32")) != first
    (folder / "model.safetensors").write_bytes(b"weight2")
    second = compiled.resolve(folder)
    (folder / "config.json").write_text("[]")
    third = compiled.resolve(folder)
    (compiled.SOURCES / "compiler").mkdir(parents=True)
    (compiled.SOURCES / "compiler" / "kernel.h").write_text("better")
    fourth = compiled.resolve(folder)
    assert len({first, second, third, fourth}) == 4 and len(compiles) == 5


def test_a_damaged_artifact_in_the_cache_is_compiled_again(model_dir, capsys):
    folder, compiles = model_dir
    artifact = compiled.resolve(folder)
    (artifact / "golden/golden.json").write_text("x")
    assert compiled.resolve(folder) == artifact and len(compiles) == 2
    assert "unusable" in capsys.readouterr().err
    shutil.rmtree(artifact / "targets")
    (artifact / "manifest.json").unlink()
    assert compiled.resolve(folder) == artifact and len(compiles) == 3
    Artifact.open(artifact)


def test_an_artifact_is_itself_and_takes_no_compile_options(model_dir, fake_artifact):
    assert compiled.resolve(fake_artifact) == fake_artifact
    with pytest.raises(UsageError, match="compiled already"):
        ingot.LLM(fake_artifact, compile_options={"dtype": "float32"})
    with pytest.raises(UsageError, match="unknown compile option 'dtyp'"):
        ingot.LLM(model_dir[0], compile_options={"dtyp": "float32"})
    with pytest.raises(ArtifactError, match="does not exist"):
        ingot.LLM(fake_artifact / "nothing")


def test_an_artifact_that_is_open_already_serves_as_well(fake_artifact):
    artifact = Artifact.open(fake_artifact)
    with ingot.LLM(artifact) as llm:
        assert llm.generate([[1]], GREEDY)[0].outputs[0].token_ids == greedy([1], 5)
    for kind in (ingot.LLM, ingot.AsyncLLM):
        with pytest.raises(UsageError, match="compiled already"):
            kind(artifact, compile_options={"dtype": "float32"})


def test_a_cache_that_cannot_be_written_is_a_typed_error(model_dir, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ResourceError, match="INGOT_CACHE"):
        compiled.resolve(model_dir[0])


MODEL = ROOT / "golden" / "models" / "shakespeare"


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"targets": "cpu:portable"}, {"targets": ("cpu:portable",)}),
        ({"targets": ["cpu:portable", "cpu:native"]}, {"targets": ("cpu:portable", "cpu:native")}),
        ({"keep": "lm_head=bf16"}, {"keep": ("lm_head=bf16",)}),
        ({"disable_passes": "merge_linears"}, {"disable_passes": ("merge_linears",)}),
        ({"calibrate": "text.txt"}, {"calibrate": Path("text.txt")}),
        ({"dump_dir": "d"}, {"dump_dir": Path("d")}),
        ({"group_size": 32}, {"group_size": "32"}),
        ({"group_size": 0}, {"group_size": "0"}),
    ],
)
def test_options_are_taken_in_every_usual_form(given, same):
    assert CompileOptions(**given) == CompileOptions(**same)
    ((name, value),) = same.items()
    found = getattr(CompileOptions(**given), name)
    assert found == value and type(found) in (type(value), type(Path()))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"targets": []}, "at least one target"),
        ({"targets": None}, "a list of strings"),
        ({"keep": [1]}, "a list of strings"),
        ({"disable_passes": b"x"}, "a list of strings"),
        ({"calibrate": 3}, "a path or None"),
        ({"dump_dir": True}, "a path or None"),
        ({"dtype": None}, "a string"),
        ({"quantize": ["int8"]}, "a string"),
        ({"group_size": True}, "a string or an integer"),
        ({"group_size": 32.0}, "a string or an integer"),
        ({"max_model_len": "512"}, "an integer or None"),
        ({"max_model_len": 512.5}, "an integer or None"),
        ({"max_num_seqs": None}, "an integer"),
        ({"page_size": True}, "an integer"),
        ({"verify_passes": 1}, "True or False"),
    ],
)
def test_an_option_of_another_type_is_refused(given, wanted):
    (name,) = given
    with pytest.raises(UsageError, match=f"{name} must be .*{wanted}") as caught:
        CompileOptions(**given)
    assert caught.value.found.startswith(f"{name} is ")


def test_a_group_size_of_0_is_refused_as_the_command_line_does(tmp_path):
    with pytest.raises(UsageError, match="--group-size is 0 for int8"):
        ingot.compile(MODEL, tmp_path / "x.ingot", quantize="int8", group_size=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["target", "targets"])
def test_target_and_targets_are_one_option(model_dir, tmp_path, name):
    folder, compiles = model_dir
    given = {name: "cpu:portable"}
    ingot.compile(folder, tmp_path / "x.ingot", **given)
    ingot.LLM(folder, compile_options=given).close()
    assert [options.targets for _, options in compiles] == [("cpu:portable",)] * 2
    with pytest.raises(UsageError, match="two names of one option"):
        ingot.compile(folder, tmp_path / "y.ingot", target="cpu:native", targets="cpu:native")


def test_an_output_that_cannot_be_written_is_refused_before_a_download(
    model_dir, tmp_path, monkeypatch
):
    folder, compiles = model_dir
    (tmp_path / "file").touch()
    asked = []
    monkeypatch.setattr("ingot.hub.names.model_path", lambda *name: asked.append(name) or folder)
    with pytest.raises(UsageError, match="cannot be written"):
        ingot.compile("Tiny/llama", tmp_path / "file" / "x.ingot")
    assert asked == compiles == []
    ingot.compile("Tiny/llama", tmp_path / "x.ingot")
    assert asked == [("Tiny/llama", None)] and len(compiles) == 1


def test_a_path_or_options_of_another_type_are_refused(model_dir, fake_artifact):
    folder, _ = model_dir
    for model in (3, None):
        with pytest.raises(UsageError, match="model must be a path"):
            ingot.LLM(model)
    with pytest.raises(UsageError, match="model_dir must be a path"):
        ingot.compile(None, "x.ingot")
    with pytest.raises(UsageError, match="out must be a path"):
        ingot.compile(folder, None)
    for options in ("int8", "", ["dtype"]):
        with pytest.raises(UsageError, match="compile_options must be a dict"):
            ingot.LLM(folder, compile_options=options)
    with pytest.raises(UsageError, match="unknown compile option 1"):
        ingot.LLM(folder, compile_options={1: 2, "dtyp": 3})
    with pytest.raises(UsageError, match="config must be an EngineConfig"):
        ingot.LLM(fake_artifact, config={"overlap": True})
    with ingot.LLM(fake_artifact) as llm, pytest.raises(UsageError, match="config is"):
        llm.config = {}


def test_another_calibration_text_is_another_artifact(model_dir, tmp_path):
    folder, _ = model_dir
    text = tmp_path / "text[1].txt"  # a pattern that does not match its own name
    keys = []
    for content in ("a", "longer"):
        text.write_text(content)
        keys.append(compiled.cache_key(ModelDir.open(folder), CompileOptions(calibrate=str(text))))
    assert keys[0] != keys[1]
    assert compiled.cache_key(ModelDir.open(folder), CompileOptions(calibrate="")) not in keys


@pytest.mark.parametrize("options", [{"max_len": 5}, {"num_thread": 1, "seed": 2}])
def test_a_misspelled_option_is_refused_before_anything_is_compiled(model_dir, options):
    folder, compiles = model_dir
    with pytest.raises(UsageError, match=next(iter(options))):
        ingot.LLM(folder, **options)
    assert not compiles


@pytest.mark.parametrize("looks", [True, False])
def test_garbage_is_looked_for_again_after_an_import(looks, monkeypatch):
    seen = []
    monkeypatch.setattr("ingot.imports.import_module", lambda name: seen.append(gc.isenabled()))
    was = gc.isenabled()
    try:
        (gc.enable if looks else gc.disable)()
        imported("anything")
        assert (seen, gc.isenabled()) == ([False], looks)
        monkeypatch.setattr("ingot.imports.import_module", lambda name: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            imported("anything")
        assert gc.isenabled() == looks
    finally:
        (gc.enable if was else gc.disable)()
