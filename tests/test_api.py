"""What `import ingot` hands to the hub, the cache and the compiler, and what it refuses before."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ingot import api, compiled, compiling
from ingot.artifact.reader import Artifact
from ingot.compiler import torch_import
from ingot.compiler.options import CompileOptions
from ingot.errors import (
    CompileError,
    IncompatibleHostError,
    ModelDirError,
    ResourceError,
    TokenizerError,
    UsageError,
    VerificationError,
)
from ingot.hub import names
from ingot.runtime.config import EngineConfig
from tests.cli.sample_artifact import write_sample


@dataclass
class Asked:
    """What was asked of the hub, of the cache and of the compiler."""

    hub: list[object] = field(default_factory=list)
    cache: list[object] = field(default_factory=list)
    compiler: list[object] = field(default_factory=list)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    seen = Asked()

    def model_path(model: object, revision: str | None = None) -> Path:
        seen.hub.append((model, revision))
        return Path("/downloaded")

    def resolve(path: Path, options: CompileOptions | None) -> Path:
        seen.cache.append((path, options))
        return Path("/cached")

    monkeypatch.setattr(names, "model_path", model_path)
    monkeypatch.setattr(compiled, "resolve", resolve)
    monkeypatch.setattr(compiling, "compile_checked", lambda *a: seen.compiler.append(a))
    return seen


def test_a_compile_is_of_what_the_hub_gives(asked: Asked) -> None:
    api.compile("a/b", "out", revision="v1", target="cpu:portable", max_num_seqs=3)
    assert asked.hub == [("a/b", "v1")]
    wanted = CompileOptions(targets="cpu:portable", max_num_seqs=3)
    assert asked.compiler == [(Path("/downloaded"), Path("out"), wanted)]
    api.compile(Path("a/b"), Path("out"))
    assert asked.hub[1:] == [(Path("a/b"), None)]
    assert asked.compiler[1:] == [(Path("/downloaded"), Path("out"), CompileOptions())]


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ((5, "o"), {}, "model_dir is 5"),
        (("m", None), {}, "out is None"),
        (("m", "a\0b"), {}, "out is "),
        (("m", "o"), {"dtipe": 1}, "unknown compile option 'dtipe'"),
        (("m", "o"), {"target": "x", "targets": "x"}, "two names of one option"),
    ],
)
def test_what_a_compile_refuses_is_refused_before_the_hub(asked, arguments, options, said) -> None:
    with pytest.raises(UsageError, match=said) as info:
        api.compile(*arguments, **options)
    assert info.value.hint and asked == Asked()


def test_a_model_directory_goes_to_the_cache_with_its_options(asked: Asked) -> None:
    artifact, options = api._found("a/b", {"target": "x"}, None, {"revision": "v1", "seed": 7})
    assert (artifact, asked.hub) == (Path("/cached"), [("a/b", "v1")])
    assert asked.cache == [(Path("/downloaded"), CompileOptions(targets="x"))]
    assert options == {"config": EngineConfig(), "seed": 7}
    api._found("a/b", None, None, {"dtype": "float32", "quantization": "int8"})
    api._found("a/b", {"page_size": 32}, None, {"dtype": "float32"})
    api._found("a/b", None, None, {})
    assert [wanted for _, wanted in asked.cache[1:]] == [
        CompileOptions(dtype="float32", quantize="int8"),
        CompileOptions(dtype="float32", page_size=32),
        None,
    ]


@pytest.mark.parametrize(
    ("compile_options", "given", "said"),
    [
        ({"dtype": "float32"}, {"dtype": "float32"}, "dtype is given twice"),
        ("float32", {}, "compile_options is 'float32'"),
        ({"dtipe": 1}, {}, "unknown compile option"),
    ],
)
def test_options_that_disagree_cost_no_download(asked, compile_options, given, said) -> None:
    with pytest.raises(UsageError, match=said):
        api._found("a/b", compile_options, None, given)
    assert asked == Asked()


def test_an_engine_is_configured_once(asked: Asked) -> None:
    config = EngineConfig(max_waiting=3)
    assert api._found("a/b", None, config, {})[1] == {"config": config}
    with pytest.raises(UsageError, match=r"config and .* are both given"):
        api._found("a/b", None, EngineConfig(), {"enable_prefix_caching": True})
    with pytest.raises(UsageError, match=r"config and .* are both given"):
        api._found("a/b", None, config, {"enable_prefix_caching": False})


@pytest.mark.parametrize("is_open", [True, False])
def test_what_is_compiled_takes_no_options_of_a_compile(asked, tmp_path, is_open) -> None:
    path = write_sample(tmp_path / "a.ingot")
    model = Artifact.open(path) if is_open else path
    with pytest.raises(UsageError, match="is compiled already"):
        api._found(model, {"dtype": "float32"}, None, {})
    artifact, _ = api._found(model, {}, None, {})
    assert artifact is model if is_open else artifact == path
    assert not asked.hub and not asked.cache


def test_arguments_can_be_held_and_are_checked_later() -> None:
    class Recorded(api.FromDirectory):
        def __init__(self, model: object, **options: object) -> None:
            self.given = (model, options)

    held = api.EngineArgs("m", seed=0, dtype="x")
    assert (held.model, held.seed) == ("m", 0)
    assert Recorded.from_engine_args(held).given == ("m", {"seed": 0, "dtype": "x"})
    with pytest.raises(UsageError, match="engine_args is"):
        Recorded.from_engine_args({"model": "m"})  # type: ignore[arg-type]


class Replayed:
    """What a replay of golden prompts found."""

    error = 0.25

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def raise_if_failed(self, hint: str) -> None:
        if self.fails:
            raise VerificationError("not reproduced", hint=hint)


def test_golden_prompts_are_replayed_where_the_weights_have_room(tmp_path, monkeypatch) -> None:
    path = write_sample(tmp_path / "a.ingot")
    weights = sum(file.stat().st_size for file in (path / "weights").iterdir())
    monkeypatch.setattr(compiling, "replay", lambda artifact: Replayed(fails=False))
    monkeypatch.setattr(compiling, "compile_hint", lambda *_: "what to do")
    for free, error in ((None, 0.25), (weights, 0.25), (weights - 1, None), (0, None)):
        monkeypatch.setattr(compiling, "available_memory", lambda free=free: free)
        assert compiling.golden_error(path) == error
    monkeypatch.setattr(compiling, "available_memory", lambda: None)
    monkeypatch.setattr(compiling, "replay", lambda artifact: Replayed(fails=True))
    with pytest.raises(VerificationError, match="not reproduced\nwhat to do"):
        compiling.golden_error(path)

    for error_of_host in (IncompatibleHostError("no target"), ResourceError("a GPU that is full")):

        def refused(artifact: Artifact, error: Exception = error_of_host) -> Replayed:
            raise error

        monkeypatch.setattr(compiling, "replay", refused)
        assert compiling.golden_error(path) is None


def test_what_is_missing_is_told_in_the_order_in_which_it_is_mended(tmp_path, monkeypatch) -> None:
    model, out = tmp_path / "m", tmp_path / "notes"
    out.mkdir()
    (out / "thesis.txt").write_text("precious")
    monkeypatch.setattr(torch_import, "find_spec", lambda name: None)
    errors = []
    steps = (
        model.mkdir,
        lambda: (model / "config.json").write_text("{"),
        lambda: (model / "config.json").write_text("{}"),
        lambda: (model / "tokenizer.json").write_text("{}"),
        lambda: (out / "thesis.txt").unlink(),
        lambda: monkeypatch.setattr(torch_import, "find_spec", lambda name: object()),
    )
    for step in (lambda: None, *steps):
        step()
        try:
            compiling.check_before_torch(model, out)
        except (CompileError, UsageError) as error:
            errors.append(type(error))
    kinds = (ModelDirError, ModelDirError, ModelDirError, TokenizerError, UsageError, CompileError)
    assert len(errors) == len(kinds)
    assert all(issubclass(error, kind) for error, kind in zip(errors, kinds, strict=True))
