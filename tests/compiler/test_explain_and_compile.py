"""`explain` held against `compile`: what it calls supported compiles, and takes what it says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bench.make_model import write_byte_tokenizer
from ingot.artifact.reader import Artifact
from ingot.cli.output import json_text
from ingot.compiler import compile as compiler
from ingot.compiler.compile import compile_model
from ingot.compiler.explain import Explanation, explain
from ingot.compiler.needs import Way
from ingot.compiler.options import CompileOptions
from ingot.errors import IngotError
from ingot.models.model_dir import ModelDir
from ingot.targets.cpu.kind import CpuKind
from ingot.targets.cuda.kind import CudaKind
from tests.compiler.test_explain import change_config, save_huge_heads
from tests.conftest import SHAKESPEARE
from tests.support import dense_models, latent_models
from tests.support.checkpoints import EMBED, NORM, Q, edit
from tests.support.core import core
from tests.support.tiny_models import CASES, VOCAB_SIZE, save_random

Damage = Callable[[Path], object]


@pytest.fixture(autouse=True)
def no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles up to the C++ compiler, and without golden outputs: neither asks what the model
    is."""
    monkeypatch.setattr(compiler, "add_golden", lambda *_: None)
    monkeypatch.setattr(compiler, "error_allowed", lambda *_: 0.0)
    for kind in (CpuKind, CudaKind):
        monkeypatch.setattr(kind, "try_tools", lambda *_: None)
        monkeypatch.setattr(kind, "prepare", lambda *_: None)
        monkeypatch.setattr(kind, "build", lambda self, folder, out, target: out.write_bytes(b"x"))


def options(way: Way, **more: object) -> CompileOptions:
    """What a compile is given for a way to store a model."""
    names = (name.removeprefix("--").replace("-", "_") for name in way.options[::2])
    return CompileOptions(**dict(zip(names, way.options[1::2], strict=True)), **more)  # type: ignore[arg-type]


GROUPS = {"int8": 128, "int6": 32, "int5": 32, "int4": 32}


def in_one_format(way: str) -> dict[str, object]:
    """Options with which nothing is measured, so that sizes are told exactly."""
    return {"group_size": GROUPS[way]} if way in GROUPS else {}


def told_of(model_dir: Path, name: str, **more: object) -> Way:
    """What is told of a way to store a model that is supported."""
    given = {"quantize": name, **in_one_format(name)} if name in GROUPS else {}
    explanation = explain(model_dir, CompileOptions(**given, **more))  # type: ignore[arg-type]
    assert explanation.supported
    (told,) = (each for each in explanation.ways if each.name == name)
    return told


def check_way(model_dir: Path, way: Way, out: Path, **more: object) -> None:
    """A compile takes the way and makes what it says, or refuses it in the same words."""
    more |= in_one_format(way.name)
    if way.refused:
        with pytest.raises(IngotError) as caught:
            compile_model(ModelDir.open(model_dir), out, options(way, **more))
        assert (way.refused, way.hint) == (caught.value.found, caught.value.hint)
        return
    report = compile_model(ModelDir.open(model_dir), out, options(way, **more))
    (file,) = (out / "weights").iterdir()
    assert file.stat().st_size == report.weight_bytes == way.weight_bytes
    manifest = report.manifest
    plan = Artifact.open(out).plan_of(manifest.targets[0])
    cache = next(c for c in way.caches if c.dtype == plan.kv_dtype)
    assert cache.bytes_per_token == manifest.model.kv_bytes_per_token
    logits = 4 * manifest.limits.max_logit_rows * manifest.model.vocab_size
    arena = plan.memory.arena_bytes
    temporaries = way.step_bytes - logits
    assert arena <= temporaries * 4 / 3
    if manifest.targets[0].layout.startswith("cpu"):  # a GPU uses places again
        assert temporaries <= arena * 4 / 3


SOME = (
    ("llama_tied_vocab_333", "bfloat16", "auto"),
    ("gpt2_vocab_333", "int4", "int8"),
    ("gemma2_width_68", "int8", "auto"),
    ("llama_head_dim_20", "float32", "auto"),
)
# Norms of heads, a temperature of positions, and rows that are keys and values.
ODD_ON_GPUS = ("cohere_qk_norm", "mistral3", "deepseek_v3_odd")
EXPERTS = [
    ("gptoss_layer_types", "int8", "auto"),
    ("qwen2moe", "bfloat16", "auto"),
    ("glm4moe", "float32", "int8"),
    ("qwen3moe_unnormalised", "int4", "auto"),
]


@pytest.mark.cases(core=2, thorough=1)
@pytest.mark.parametrize(("name", "way", "kv"), core(*SOME, further=EXPERTS[:1], slow=EXPERTS))
def test_sizes_are_those_of_the_files(name: str, way: str, kv: str, tmp_path: Path) -> None:
    model_dir = save_random(name, tmp_path / "model", "bfloat16", tokenizer=True)
    check_way(model_dir, told_of(model_dir, way), tmp_path / "a.ingot", kv_dtype=kv)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "way", "kv"),
    [("qwen35", "int4", "auto"), ("qwen3next", "bfloat16", "auto"), ("qwen35_odd", "int8", "int8")],
)
def test_sizes_of_models_that_keep_states(name: str, way: str, kv: str, tmp_path: Path) -> None:
    model_dir = save_random(name, tmp_path / "model", "bfloat16", tokenizer=True)
    told = told_of(model_dir, way)
    check_way(model_dir, told, tmp_path / "a.ingot", kv_dtype=kv)
    artifact = Artifact.open(tmp_path / "a.ingot")
    plan = artifact.plan_of(artifact.manifest.targets[0])
    assert plan.slot_bytes == told.caches[0].bytes_per_sequence > 0


@pytest.mark.parametrize(
    "rule, refused", [("down_proj=none", ""), ("q_proj=none", "is one matrix")]
)
def test_rules_count_in_sizes(rule: str, refused: str, tmp_path: Path) -> None:
    keep = ("lm_head=int4", rule)
    model_dir = save_random("qwen3_tied", tmp_path / "model", "bfloat16", tokenizer=True)
    explanation = explain(model_dir, CompileOptions(quantize="int8", group_size=128, keep=keep))
    told = next(each for each in explanation.ways if each.name == "int8")
    assert refused in told.refused and bool(refused) == bool(told.refused)
    check_way(model_dir, told, tmp_path / "a.ingot", keep=keep)


def test_what_measurement_chooses_takes_no_more(tmp_path: Path) -> None:
    """Sizes are told for one format, and measured formats are chosen in its bytes."""
    told = next(way for way in explain(SHAKESPEARE).ways if way.name == "int4")
    report = compile_model(ModelDir.open(SHAKESPEARE), tmp_path / "a.ingot", options(told))
    assert report.choice
    assert 0.97 * told.weight_bytes < report.weight_bytes < 1.01 * told.weight_bytes


@pytest.mark.parametrize("name, way", core(further=[EXPERTS[3][:2]], slow=[e[:2] for e in EXPERTS]))
def test_sizes_of_experts_on_a_gpu(name: str, way: str, tmp_path: Path) -> None:
    targets = ("cuda:sm_90",)
    model_dir = save_random(name, tmp_path / "model", "bfloat16", tokenizer=True)
    told = told_of(model_dir, way, targets=targets)
    check_way(model_dir, told, tmp_path / "a.ingot", targets=targets)


@pytest.mark.cases(thorough=5)
@pytest.mark.parametrize(
    ("index", "name"), core(further=list(enumerate(CASES))[::5], slow=enumerate(CASES))
)
def test_sizes_of_every_case(index: int, name: str, tmp_path: Path) -> None:
    """Each in another way and for another kind of target than its neighbours."""
    target = ("cpu:portable", "cuda:sm_90")[index % 2]
    model_dir = save_random(name, tmp_path / "model", "float16", tokenizer=True)
    ways = explain(model_dir, CompileOptions(targets=(target,))).ways
    told = told_of(model_dir, ways[index % len(ways)].name, targets=(target,))
    check_way(model_dir, told, tmp_path / "a.ingot", targets=(target,))


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize(
    "name", core(further=ODD_ON_GPUS, slow=[*dense_models.CASES, *latent_models.CASES])
)
def test_models_that_a_gpu_supports_compile_for_it(name: str, tmp_path: Path) -> None:
    """Each of them: to call one supported whose op has no kernel there is a mistake."""
    target = "cuda:sm_90"
    model_dir = save_random(name, tmp_path / "model", "bfloat16", tokenizer=True)
    explanation = explain(model_dir, CompileOptions(targets=(target,)))
    assert explanation.supported
    check_way(model_dir, explanation.ways[0], tmp_path / "a.ingot", targets=(target,))


def write(name: str, text: str | bytes) -> Damage:
    data = text.encode() if isinstance(text, str) else text
    return lambda folder: (folder / name).write_bytes(data)


def config(**changes: object) -> Damage:
    return lambda folder: change_config(folder, **changes)


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    return lambda folder: edit(folder, change)


def narrow_tokenizer(folder: Path) -> None:
    """A model whose vocabulary ends before that of its tokenizer."""
    change_config(folder, vocab_size=250, bos_token_id=1, eos_token_id=2)
    edit(
        folder,
        lambda t: t.update({name: t[name][:250].clone() for name in (EMBED, "lm_head.weight")}),
    )


DAMAGES: dict[str, Damage] = {
    "no tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
    "broken tokenizer": write("tokenizer.json", "{}"),
    "wide tokenizer": narrow_tokenizer,
    "no config": lambda folder: (folder / "config.json").unlink(),
    "no JSON": write("config.json", "{"),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "pickles": lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
    "adapter": lambda folder: (
        (folder / "model.safetensors").unlink(), write("adapter_config.json", "{}")(folder)
    ),
    "truncated": lambda folder: write(
        "model.safetensors", (folder / "model.safetensors").read_bytes()[:-9]
    )(folder),
    "index too": write("model.safetensors.index.json", "{}"),
    "missing tensor": tensors(lambda t: t.pop(NORM)),
    "tensor more": tensors(lambda t: t.update(more=torch.ones(2))),
    "misshapen": tensors(lambda t: t.update({Q: t[Q][:8].clone()})),
    "integers": tensors(lambda t: t.update({Q: t[Q].to(torch.int8)})),
    "unknown architecture": config(architectures=["OtherForCausalLM"]),
    "no architecture": config(architectures=None),
    "two architectures": config(architectures=["LlamaForCausalLM", "GPT2LMHeadModel"]),
    "unknown key": config(odd=3),
    "missing key": config(rms_norm_eps=None),
    "head_dim": config(head_dim=10),
    "heads": config(num_key_value_heads=3),
    "gptq": config(quantization_config={"quant_method": "gptq", "bits": 4}),
    "mrope": config(rope_parameters={"rope_type": "mrope", "mrope_section": [1, 2]}),
    "llama3": config(
        rope_parameters={"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0}
    ),
    "dtype": config(dtype="float8_e4m3fn"),
    "too many layers": config(num_hidden_layers=10_001),
    "eos": write("generation_config.json", '{"eos_token_id": 99999}'),
    "generation": write("generation_config.json", "[]"),
}  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random("llama", tmp_path_factory.mktemp("good") / "model", tokenizer=True)


@pytest.fixture
def model(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "model"))


def refusal(model_dir: Path) -> IngotError:
    with pytest.raises(IngotError) as caught:
        compile_model(ModelDir.open(model_dir), model_dir.parent / "a.ingot")
    return caught.value


def says(explanation: Explanation, error: IngotError) -> bool:
    return error.found in [reason.found for reason in explanation.reasons]


@pytest.mark.parametrize("name", DAMAGES)
def test_what_a_compile_refuses_is_not_supported_for_that_reason(name: str, model: Path) -> None:
    DAMAGES[name](model)
    explanation, error = explain(model), refusal(model)
    assert not explanation.supported and says(explanation, error)
    if name != "wide tokenizer":
        assert len(explanation.reasons) == 1


def test_each_refusal_that_follows_a_repair_was_told_at_first(model: Path) -> None:
    """Faults that hide each other from a compile, which stops at the first."""
    whole = (model / "config.json").read_bytes()
    for name in ("no tokenizer", "pickles", "unknown key", "missing key", "mrope"):
        DAMAGES[name](model)
    told, seen = explain(model), []
    repairs: list[Damage] = [
        lambda folder: change_config(folder, rope_parameters=None),
        lambda folder: change_config(folder, rms_norm_eps=1e-6),
        lambda folder: write("config.json", whole)(folder),
        lambda folder: write_byte_tokenizer(folder, VOCAB_SIZE),
        lambda folder: (folder / "pytorch_model.bin").rename(folder / "model.safetensors"),
    ]
    for repair in repairs:
        error = refusal(model)
        seen.append(error.found)
        assert says(told, error)
        repair(model)
    assert len(set(seen)) == len(told.reasons) == len(repairs)
    assert explain(model).supported


def test_heads_that_are_too_large_are_refused_by_both(tmp_path: Path) -> None:
    folder = save_huge_heads(tmp_path / "model")
    write_byte_tokenizer(folder, VOCAB_SIZE)
    assert [reason.about for reason in explain(folder).reasons] == ["target"]
    assert "heads of size 516" in refusal(folder).found


def test_the_answer_is_plain_data(good: Path) -> None:
    told = json.loads(json_text(explain(good)))
    assert list(told) == [
        "supported", "architecture", "family", "reasons", "features", "ignored", "nearest",
        "differing", "absent", "num_parameters", "active_parameters", "programs", "dtype", "target",
        "compile_options", "context", "seats", "memory_bytes", "ways",
    ]  # fmt: skip
    assert list(told["ways"][0]) == [
        "name", "options", "default", "refused", "hint", "stored_as", "matrices", "weight_bytes",
        "expert_bytes", "step_bytes", "caches",
    ]  # fmt: skip
    assert list(told["ways"][0]["caches"][0]) == [
        "dtype", "options", "bytes_per_token", "bytes_per_sequence", "cache_bytes", "total_bytes",
        "fits", "largest_context", "largest_seats",
    ]  # fmt: skip
