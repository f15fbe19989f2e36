"""The front end's work is done once for a shape, and never taken for that of another."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import ingot
from ingot.artifact import front_entry
from ingot.artifact.codec import encode_plan
from ingot.artifact.formats import Storage
from ingot.cache.builds import Builds
from ingot.compiler import kept_front, lower_model
from ingot.compiler.compile import target_plans
from ingot.compiler.front import Front
from ingot.compiler.graph_data import graph_data
from ingot.compiler.kept_front import decode_front, encode_front, front_key, front_of
from ingot.compiler.model import OpenModel, read_model
from ingot.compiler.options import Clock, CompileOptions, silent
from ingot.models.model_dir import ModelDir
from ingot.targets.target import kind_of
from tests.support.core import core
from tests.support.tiny_models import save_random

OPTIONS = CompileOptions(
    targets="cpu:portable", quantize="int8", group_size=128, keep="*.layers.1.*=none"
)


def read(folder: Path, options: CompileOptions = OPTIONS) -> OpenModel:
    return read_model(ModelDir.open(folder), options, Clock(silent))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random("gemma2", tmp_path_factory.mktemp("of") / "model", tokenizer=True)


@pytest.fixture(scope="module")
def model(folder: Path) -> OpenModel:
    return read(folder)


@pytest.fixture(scope="module")
def made(model: OpenModel) -> Front:
    return lower_model.lower_model(model, Clock(silent))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def kept(cache: Path, model: OpenModel, made: Front) -> Path:
    """The entry of the model, as a compile leaves it."""
    cache.mkdir(parents=True)
    Builds(cache).keep(front_key(model), encode_front(made), kept_front.SUFFIX)
    (entry,) = cache.iterdir()
    return entry


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch, made: Front) -> list[OpenModel]:
    """The models that were exported meanwhile."""
    found: list[OpenModel] = []

    def lower(model: OpenModel, clock: Clock, exported: object) -> Front:
        found.append(model)
        return made

    monkeypatch.setattr(lower_model, "lower_model", lower)
    return found


def parts(front: Front) -> tuple[Any, ...]:
    """All that a front has; the plan as text, since equal dicts may differ in their order."""
    rest = (getattr(front, field.name) for field in fields(Front) if field.name != "reference")
    return (graph_data(front.reference.graph), *map(repr, rest))


def test_a_front_is_made_once_and_comes_back_whole(
    cache: Path, folder: Path, made: Front, exports: list[OpenModel]
) -> None:
    first = front_of(read(folder), Clock(silent))
    assert len(exports) == 1 and first is made
    stages: list[str] = []
    again = front_of(read(folder), Clock(lambda stage, *_: stages.append(stage)))
    assert len(exports) == 1 and again is not made and stages == ["plan", "plan"]
    assert parts(again) == parts(made)
    assert [path.suffix for path in cache.iterdir()] == [".front"]


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("family", core("gpt2", further=["llama", "mistral", "qwen2", "qwen3"]))
def test_targets_make_the_same_of_what_comes_back(family: str, tmp_path: Path) -> None:
    """Byte by byte: not even the order of a comment's words is another."""
    targets = ("cpu:x86-64-v3", "cuda:sm_90")
    options = CompileOptions(targets=targets, dtype="bfloat16", kv_dtype="int8")
    model = read(save_random(family, tmp_path / "model", tokenizer=True), options)
    made = lower_model.lower_model(model, Clock(silent))
    again = decode_front(encode_front(made), model)
    assert again is not None and parts(again) == parts(made)
    for target in model.resolved.targets:
        kind = kind_of(target)
        (one, groups), (other, same) = (
            target_plans(target, front, options)["step"] for front in (made, again)
        )
        assert encode_plan(one) == encode_plan(other) and groups == same
        assert dict(kind.sources(one, target)) == dict(kind.sources(other, target))


def test_another_front_is_made_of_a_graph_that_was_kept(kept: Path, folder: Path) -> None:
    """As goldens of one more number format are recorded: the graph says no shapes any more."""
    exact = front_of(read(folder), Clock(silent))
    other = CompileOptions(targets="cpu:portable", quantize="int8", group_size=128)
    assert not any("val" in node.meta for node in exact.reference.graph.nodes)
    front = front_of(read(folder, other), Clock(silent), exact.reference)
    assert set(front.storage.values()) == {Storage(8, 128)}


def test_weights_are_those_of_the_model_that_asks(kept: Path, folder: Path, made: Front) -> None:
    asking = read(folder)
    front = decode_front(kept.read_bytes(), asking)
    assert front is not None
    own = dict(asking.module.named_parameters())
    read_by = front.reference.graph.find_nodes(op="get_attr")
    assert read_by and all(
        front.reference.get_parameter(node.target) is own[node.target]
        for node in read_by
        if node.target in own
    )


@pytest.mark.parametrize("damage", ["cut", "changed", "none of ours"])
def test_a_damaged_entry_is_made_anew(
    damage: str, kept: Path, model: OpenModel, made: Front, exports: list[OpenModel]
) -> None:
    data = kept.read_bytes()
    key = kept.name.partition("-")[0]
    if damage == "none of ours":  # whole, but by another program
        kept.unlink()
        Builds(kept.parent).keep(key, b'{"nodes": []}', kept_front.SUFFIX)
    else:
        kept.write_bytes(data[:-9] if damage == "cut" else data.replace(b"aten.", b"atem.", 1))
    assert front_of(model, Clock(silent)) is made and len(exports) == 1
    if damage != "none of ours":
        assert Builds(kept.parent).take(key, kept_front.SUFFIX) == data


@pytest.mark.parametrize("change", ["node", "plan", "order"])
def test_a_front_that_would_not_come_back_is_not_kept(
    change: str, cache: Path, model: OpenModel, made: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    if change == "node":
        monkeypatch.setattr(kept_front, "graph_of", lambda nodes: torch.fx.Graph())
    elif change == "plan":
        first, *others = made.plan.instructions
        endless = replace(first, attrs={**first.attrs, "scale": float("inf")})
        plan = replace(made.plan, instructions=(endless, *others))
        made = replace(made, programs=(replace(made.main, plan=plan),))
    else:
        real = front_entry.decode_json

        def sorting(data: bytes, kind: Any) -> Any:
            values = msgspec.json.decode(data)
            return real(msgspec.json.encode(values, order="deterministic"), kind)

        monkeypatch.setattr(front_entry, "decode_json", sorting)
    with pytest.raises(ValueError):
        encode_front(made)
    monkeypatch.setattr(lower_model, "lower_model", lambda *_: made)
    assert front_of(model, Clock(silent)) is made
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("wanted", [{"verify_passes": True}, {"dump_dir": "dump"}])
def test_passes_run_where_somebody_looks_at_them(
    wanted: dict[str, Any], kept: Path, model: OpenModel, made: Front, exports: list[OpenModel]
) -> None:
    before = kept.stat().st_mtime_ns
    looking = replace(model, options=replace(model.options, **wanted))
    assert front_of(looking, Clock(silent)) is made and len(exports) == 1
    assert kept.stat().st_mtime_ns == before and len(list(kept.parent.iterdir())) == 1


def test_a_compile_needs_no_cache(
    tmp_path: Path, model: OpenModel, made: Front, exports: list[OpenModel], monkeypatch: Any
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "file"))
    assert front_of(model, Clock(silent)) is made and len(exports) == 1


def test_what_was_made_while_a_source_changed_is_not_kept(
    cache: Path, model: OpenModel, made: Front, exports: list[OpenModel], monkeypatch: Any
) -> None:
    """Of modules that are imported late, nobody knows which sources they come from."""
    with monkeypatch.context() as patch:
        patch.setattr(kept_front, "sources_hash", lambda folder: "of an edit")
        assert front_of(model, Clock(silent)) is made
    assert list(cache.iterdir()) == []
    assert front_of(model, Clock(silent)) is made  # the control
    assert len(list(cache.iterdir())) == 1


def test_a_cache_that_takes_nothing_more_is_no_fault(
    cache: Path, model: OpenModel, made: Front, exports: list[OpenModel], monkeypatch: Any
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept_front.Builds, "keep", full)
    assert front_of(model, Clock(silent)) is made


@pytest.mark.parametrize("quantize", core(further=["int4", "none"]))
def test_a_model_with_experts_is_compiled_a_second_time(
    quantize: str, cache: Path, tmp_path: Path
) -> None:
    """What rounds and measures it has the kept graph, whose nodes tell no shapes."""
    model_dir = save_random("qwen3moe_unnormalised", tmp_path / "model", tokenizer=True)
    weights = []
    for name in ("first.ingot", "second.ingot"):
        sizes = {} if quantize == "none" else {"group_size": 32}
        options = {"quantize": quantize, **sizes, "targets": "cpu:portable", "max_model_len": 64}
        made = ingot.compile(model_dir, tmp_path / name, **options)
        weights.append([path.read_bytes() for path in made.artifact.rglob("*.safetensors")])
    assert weights[0] and weights[0] == weights[1]
    assert len(list(cache.glob(f"*{kept_front.SUFFIX}"))) == 1
