"""What `explain` says about model directories."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from bench.make_model import write_byte_tokenizer
from ingot.artifact.host import available_memory
from ingot.compiler.explain import Explanation, explain
from ingot.compiler.needs import Use, Way
from ingot.compiler.options import CompileOptions
from ingot.errors import ModelDirError, UsageError
from ingot.models import registry
from ingot.models.model_dir import ModelDir
from tests.support.checkpoints import HEAD, NORM, Q, Tensors, edit
from tests.support.tiny_models import VOCAB_SIZE, save_random

Copy = Callable[[str], Path]


def change_config(model_dir: Path, **changes: object) -> Path:
    path = model_dir / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return model_dir


@pytest.fixture(scope="module")
def whole(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The saved directories, with tokenizers."""
    root = Path(shutil.copytree(saved, tmp_path_factory.mktemp("whole") / "saved"))
    for folder in root.iterdir():
        write_byte_tokenizer(folder, VOCAB_SIZE)
    return root


def save_huge_heads(folder: Path) -> Path:
    """A model with a head that is larger than any that CPU kernels take."""
    config = transformers.LlamaConfig(
        vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, head_dim=516, max_position_embeddings=64,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def ways(explanation: Explanation) -> dict[str, Way]:
    return {way.name: way for way in explanation.ways}


def found(explanation: Explanation) -> list[str]:
    return [reason.found for reason in explanation.reasons]


def test_supported_model(whole: Path) -> None:
    explanation = explain(whole / "bfloat16")
    outer = 2 * 320
    inner = 2 * (2 * 64 + 2 * 32 + 2 * 96)  # rows of 64
    wide = 2 * 64  # rows of 96
    matrices = (outer + inner) * 64 + wide * 96
    vectors = 64 * (2 * 2 + 1)
    assert explanation.supported and explanation.family == "llama" and not explanation.reasons
    assert explanation.architecture == "LlamaForCausalLM"
    assert explanation.num_parameters == matrices + vectors
    data = {
        "bfloat16": 2 * matrices + 4 * vectors,
        "float32": 4 * (matrices + vectors),
        # A row is a short block: it has a scale, and in int4 multipliers and zeros of four groups.
        "int8": matrices + 2 * (outer + inner + wide) + 4 * vectors,
        "int4": outer * 66 + inner * (32 + 8) + wide * (48 + 8) + 4 * vectors,
    }
    told = ways(explanation)
    # The file has a header beside that, and the frequencies of the rotation.
    assert {name: told[name].weight_bytes - size for name, size in data.items()} == {
        name: pytest.approx(1600, abs=150) for name in data
    }
    assert [way.name for way in explanation.ways if way.default] == ["bfloat16"]
    assert told["float16"].refused.endswith("cannot compute in float16")
    own, narrow_cache = told["bfloat16"].caches
    assert (own.dtype, own.bytes_per_token) == ("bfloat16", 2 * 2 * 2 * 16 * 2)
    assert (narrow_cache.dtype, narrow_cache.bytes_per_token) == ("int8", 2 * 2 * 2 * (16 + 4))
    assert any("2 key-value heads of 16" in feature for feature in explanation.features)


def test_tied_matrix_counts_once_and_float32_caches_are_wider(whole: Path) -> None:
    untied, tied = (explain(whole / kind) for kind in ("single", "tied"))
    assert untied.num_parameters - tied.num_parameters == 320 * 64
    wide, narrow = (ways(tied)[name].caches[0] for name in ("float32", "bfloat16"))
    assert wide.bytes_per_token == 2 * narrow.bytes_per_token


@pytest.mark.parametrize(
    ("name", "present", "absent"),
    [
        (
            "gemma2",
            {"norms before and after attention and MLP", "scores are capped at 3"}
            | {"logits are capped at 30", "sliding window of 24 tokens in 2 layers"},
            "learned positions",
        ),
        (
            "gpt2",
            {"learned positions, up to 512 positions", "biases: q, k, v, attention output, MLP"},
            "rotary",
        ),
        (
            "cohere2",
            {"attention and MLP side by side, on one norm"}
            | {"rotary embedding default in 4 of 5 layers, up to 512 positions"},
            "normalised",
        ),
        (
            "olmo3_yarn",
            {"norms after attention and MLP", "sliding window of 24 tokens in 3 layers"}
            | {"queries and keys are normalised over their whole width"}
            | {"rotary embedding default and yarn, up to 512 positions"},
            "biases",
        ),
    ],
)
def test_features(name: str, present: set[str], absent: str, tmp_path: Path) -> None:
    features = explain(save_random(name, tmp_path)).features
    assert present <= set(features)
    assert not any(absent in feature for feature in features)


def test_rows_that_groups_do_not_divide_have_a_size_as_well(tmp_path: Path) -> None:
    told = ways(explain(save_random("gemma2_width_68", tmp_path)))
    sizes = {name: told[name].weight_bytes for name in ("float32", "bfloat16", "int8", "int4")}
    assert list(sizes.values()) == sorted(sizes.values(), reverse=True) and sizes["int4"] > 0


def test_unknown_architecture(copy: Copy) -> None:
    model_dir = change_config(copy("single"), architectures=["MiniCPMForCausalLM"], scale_emb=12)
    explanation = explain(model_dir)
    assert not explanation.supported and explanation.family == ""
    assert explanation.nearest == "Phi3ForCausalLM" and explanation.differing == ("scale_emb",)
    (reason, tokenizer) = explanation.reasons
    assert (reason.about, tokenizer.about) == ("model", "tokenizer")
    assert "MiniCPMForCausalLM" in reason.found
    # What is near stands in fields of its own, once.
    assert "nearest" not in reason.hint and "scale_emb" not in reason.hint + reason.found


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"head_dim": 10}, "head_dim is 10"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"vocab_size": 321}, "another shape"),
        ({"architectures": []}, "architectures"),
    ],
)
def test_known_architecture_that_cannot_be_built(
    changes: dict[str, object], named: str, whole: Path, tmp_path: Path
) -> None:
    model_dir = Path(shutil.copytree(whole / "single", tmp_path / "model"))
    explanation = explain(change_config(model_dir, **changes))
    (reason,) = explanation.reasons
    assert not explanation.supported and named in reason.found and reason.hint
    assert explanation.num_parameters == 0 and explanation.nearest == ""
    assert explanation.ways == ()


def test_every_reason_is_told_at_once(copy: Copy) -> None:
    """Each of them alone is enough for a compile to refuse the directory."""
    model_dir = change_config(
        copy("sharded"), hidden_act="xielu", num_attention_heads="4", odd=1, head_dim=None,
        rope_parameters={"rope_type": "mrope", "sections": [1, 2]},
    )  # fmt: skip
    shard = sorted(model_dir.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-5])
    reasons = explain(model_dir).reasons
    assert [reason.about for reason in reasons] == [*["config"] * 4, "tokenizer", "weights"]
    wanted = (
        "num_attention_heads = '4'", "mrope", "xielu", "the unknown key odd",
        "has no tokenizer.json", f"{shard.name} is truncated",
    )  # fmt: skip
    assert [w for w, reason in zip(wanted, reasons, strict=True) if w not in reason.found] == []


def test_tensors_are_told_of_all_at_once(whole: Path, tmp_path: Path) -> None:
    model_dir = Path(shutil.copytree(whole / "single", tmp_path / "model"))

    def damage(tensors: Tensors) -> None:
        del tensors[NORM]
        tensors["extra"] = torch.ones(1)
        tensors[Q] = tensors[Q][:8].clone()
        tensors[HEAD] = tensors[HEAD].to(torch.int32)

    (missing, dtype, shape) = found(explain(edit(model_dir, damage)))
    assert NORM in missing and "extra" in missing
    assert HEAD in dtype and "I32" in dtype and f"{Q} [8, 64] instead of [64, 64]" in shape


def test_a_broken_shard_hides_no_other_fault(whole: Path, tmp_path: Path) -> None:
    """And what lies in it is not told to be missing."""
    model_dir = Path(shutil.copytree(whole / "sharded", tmp_path / "model"))
    first, *_, last = sorted(model_dir.glob("model-*.safetensors"))
    first.unlink()
    last.write_bytes(b"x")
    absent, damaged = found(explain(model_dir))
    assert "shards that are absent" in absent and f"{last.name} is 1 bytes long" in damaged
    change_config(model_dir, intermediate_size=100)
    assert "another shape" in found(explain(model_dir))[-1]


def test_a_model_without_weights_has_the_sizes_of_its_config(whole: Path, tmp_path: Path) -> None:
    model_dir = Path(shutil.copytree(whole / "bfloat16", tmp_path / "model"))
    (model_dir / "model.safetensors").unlink()
    told, same = explain(model_dir), explain(whole / "bfloat16")
    assert [reason.about for reason in told.reasons] == ["weights"] and not told.supported
    assert told.num_parameters == same.num_parameters and told.ways == same.ways


def test_heads_that_no_kernel_takes(tmp_path: Path) -> None:
    (reason, _) = explain(save_huge_heads(tmp_path)).reasons[::-1]
    assert (reason.about, reason.found) == ("target", "heads of 516 are too large for cpu targets")


def test_config_that_is_not_json(copy: Copy) -> None:
    model_dir = copy("single")
    (model_dir / "config.json").write_text("{")
    explanation = explain(model_dir)
    assert not explanation.supported and "not JSON" in found(explanation)[0]
    assert [reason.about for reason in explanation.reasons] == ["config", "tokenizer"]


def test_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelDirError, match="absent"):
        explain(tmp_path / "absent")


def test_dtype_comes_from_the_checkpoint_if_the_config_is_silent(copy: Copy) -> None:
    for kind, dtype in (("bfloat16", "bfloat16"), ("sharded", "float32")):
        model_dir = change_config(copy(kind), dtype=None)
        assert registry.load_config(ModelDir.open(model_dir)).checkpoint_dtype == dtype
        for path in model_dir.glob("*.safetensors"):
            path.write_bytes(b"damaged")
        assert registry.load_config(ModelDir.open(model_dir)).checkpoint_dtype == "float32"


PER_HEAD = "queries and keys are normalised per head"


def test_the_reasons_of_a_plain_model(saved: Path) -> None:
    assert explain(saved / "float16").features == (
        "2 layers of width 64, gated MLP of 96",
        "4 query heads over 2 key-value heads of 16",
        "vocabulary of 320, separate head",
        "rotary embedding default, up to 512 positions",
        "checkpoint in float16",
    )
    assert "vocabulary of 320, tied head" in explain(saved / "tied").features


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("qwen3", {PER_HEAD}),
        ("qwen2", {"biases: q, k, v"}),
        ("llama_attention_bias", {"biases: q, k, v, attention output"}),
        ("llama_mlp_bias", {"biases: MLP"}),
    ],
)
def test_what_only_some_models_have_is_said_of_those_alone(
    name: str, more: set[str], tmp_path: Path
) -> None:
    assert set(explain(save_random(name, tmp_path)).features[5:]) == more


def test_memory_for_a_context_and_seats(whole: Path) -> None:
    """Pages of 16 tokens: 100 tokens take 7 of them."""
    told = explain(whole / "bfloat16", use=Use(context=100, seats=3, memory_bytes=10**9))
    way = ways(told)["bfloat16"]
    own, narrow = way.caches
    assert own.cache_bytes == own.bytes_per_token * 7 * 16 * 3
    for cache in way.caches:
        assert cache.total_bytes == way.weight_bytes + way.step_bytes + cache.cache_bytes
        assert cache.fits and cache.largest_context == 512 and cache.largest_seats == 4096
    assert narrow.cache_bytes < own.cache_bytes
    assert explain(whole / "bfloat16").context == 512


def test_what_fits_is_the_largest_that_does(whole: Path) -> None:
    model = whole / "bfloat16"

    def cache(memory: int | None, context: int = 100, seats: int = 3):
        use = Use(context=context, seats=seats, memory_bytes=memory)
        return ways(explain(model, use=use))["bfloat16"].caches[0]

    whole_bytes = cache(None).total_bytes
    assert cache(None).fits is cache(None).largest_context is cache(None).largest_seats is None
    assert cache(whole_bytes).fits and not cache(whole_bytes - 1).fits
    less = cache(whole_bytes - 1)
    assert (less.largest_context, less.largest_seats) == (6 * 16, 2)
    assert cache(whole_bytes - 1, context=96).fits and cache(whole_bytes - 1, seats=2).fits
    none = cache(whole_bytes - cache(None).cache_bytes)
    assert (none.largest_context, none.largest_seats) == (0, 0)


def test_windows_bound_the_pages_of_a_sequence(tmp_path: Path) -> None:
    """Where every layer has one: two steps of 512 tokens and a window of 24 is less than 4096."""
    folder = save_random("mistral", tmp_path / "all")
    change_config(folder, max_position_embeddings=4096)
    windowed = ways(explain(folder))["bfloat16"].caches[0]
    change_config(folder, sliding_window=None)
    full = ways(explain(folder))["bfloat16"].caches[0]
    assert windowed.cache_bytes == full.bytes_per_token * 16 * (-(-(24 + 1024) // 16) + 2)
    assert full.cache_bytes == full.bytes_per_token * 4096


@pytest.mark.parametrize("use", [Use(context=513), Use(seats=4097), Use(context=-1)])
def test_a_use_beyond_the_model_is_an_error(use: Use, whole: Path) -> None:
    with pytest.raises(UsageError, match=r"is -?\d+\nSupported: 1 to "):
        explain(whole / "single", use=use)


def test_many_seats_need_options_of_the_compile(whole: Path) -> None:
    told = explain(whole / "single", use=Use(seats=600))
    assert told.compile_options == ("--max-num-seqs", "600", "--max-num-batched-tokens", "600")
    assert explain(whole / "single", use=Use(seats=64)).compile_options == ()


def test_a_target_decides_what_is_refused_and_how_weights_lie(whole: Path) -> None:
    gpu = explain(whole / "float16", CompileOptions(targets=("cuda:sm_90",)))
    cpu = explain(whole / "float16")
    assert gpu.target == "cuda:sm_90" and gpu.compile_options == ("--target", "cuda:sm_90")
    assert [way.name for way in gpu.ways if way.default] == ["float16"]
    assert [way.name for way in cpu.ways if way.default] == ["bfloat16"]
    assert ways(gpu)["int4"].refused == "" or "groups" in ways(gpu)["int4"].refused
    with pytest.raises(UsageError, match="cpu:what"):
        explain(whole / "single", CompileOptions(targets=("cpu:what",)))


def test_this_host_tells_its_memory() -> None:
    free = available_memory()
    assert free is not None and free > 10**8


def test_what_changes_nothing_is_told(whole: Path, tmp_path: Path) -> None:
    assert explain(whole / "single").ignored == ()
    model_dir = Path(shutil.copytree(whole / "single", tmp_path / "model"))
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4, "beta_fast": 32}
    change_config(model_dir, rope_parameters=rope)
    scale = "model.layers.1.self_attn.k_scale"
    edit(model_dir, lambda tensors: tensors.update({scale: torch.ones(1)}))
    told = explain(model_dir)
    assert told.supported
    key, scales = told.ignored
    assert "rope_parameters: beta_fast = 32" in key and scale in scales


def test_keys_that_are_refused_hide_no_tensor(whole: Path, tmp_path: Path) -> None:
    """Without them the config is sound, so what it says of tensors counts; sizes do not."""
    model_dir = Path(shutil.copytree(whole / "single", tmp_path / "model"))
    change_config(model_dir, odd=1, is_encoder_decoder=True)
    edit(model_dir, lambda tensors: tensors.pop(Q))
    told = explain(model_dir)
    assert [reason.about for reason in told.reasons] == ["config", "config", "weights"]
    assert f"lacks {Q}" in found(told)[-1] and told.family == "llama" and told.ways == ()


def test_a_wrong_list_of_factors_is_no_list_of_another_length(whole: Path, tmp_path: Path) -> None:
    """What stands in for a value is never told of."""
    model_dir = Path(shutil.copytree(whole / "single", tmp_path / "model"))
    rope = {
        "rope_type": "longrope",
        "short_factor": "none",
        "long_factor": [1.0] * 8,
        "factor": 2.0,
    }
    (reason,) = explain(change_config(model_dir, rope_parameters=rope)).reasons
    assert "short_factor = 'none'" in reason.found
