"""GGUF files against `transformers`, on the model that each was made from and on the file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from ingot.errors import CheckpointError
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint, materialize
from ingot.models.gguf.orders import Pairs, Thirds
from ingot.models.model_dir import ModelDir
from tests.support import gguf_files
from tests.support.core import core
from tests.support.gguf_files import Type, changed, permute, write_gguf
from tests.support.gguf_latent import write_older_sizes
from tests.support.tiny_models import EVERY, TRAINED, VOCAB_SIZE, randomise

LIMIT = 1e-5


def ours(path: Path, length: int) -> torch.Tensor:
    config = registry.load_config(ModelDir.open(path))
    module = registry.build(config, max_model_len=max(length, TRAINED))
    with Checkpoint.open(ModelDir.open(path), config, module) as checkpoint:
        materialize(module, checkpoint)
    with torch.no_grad():
        return module(ids(length), torch.arange(length)[None])


def ids(length: int) -> torch.Tensor:
    return torch.randint(VOCAB_SIZE, (1, length), generator=torch.Generator().manual_seed(length))


def theirs(model: torch.nn.Module, length: int) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids(length), use_cache=False).logits


def original(model_dir: Path) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    assert expected.std() > 0.1, "degenerate logits prove nothing"
    return float((got - expected).norm() / expected.norm())


CASES: dict[str, Callable[[], transformers.PreTrainedConfig]] = {
    name: EVERY[name]
    for name in (
        "llama llama_mqa llama_tied llama_attention_bias llama_mlp_bias llama_head_dim_20 "
        "llama_linear qwen2 qwen2_tied qwen2_yarn qwen3 qwen3_attention_bias qwen3_mqa gpt2 "
        "gpt2_inner mistral_full"
    ).split()
}


def usual(name: str) -> transformers.PreTrainedConfig:
    config = EVERY[name]()
    if hasattr(config, "query_pre_attn_scalar"):
        config.query_pre_attn_scalar = config.head_dim  # as llama.cpp has it
    if "mscale" in (config.rope_parameters or {}):
        config.rope_parameters["mscale"] = config.rope_parameters["mscale_all_dim"]  # the same
    return config


def llama3() -> transformers.PreTrainedConfig:
    config = EVERY["llama_llama3"]()
    # A longer base, so that some frequencies lie in each part of the band.
    config.rope_parameters |= {"original_max_position_embeddings": 8192, "rope_theta": 500000.0}
    return config


CASES |= {"gemma2": partial(usual, "gemma2"), "llama3": llama3}
# Of the other dense families, those whose metadata say all.
CASES |= {
    name: partial(usual, name)
    for name in (
        "gemma gemma3_pattern phi3 phi3_window phi3_longrope glm4 olmo2 olmo3 granite "
        "granite_biases smollm3 cohere cohere_qk_norm cohere2 starcoder2 starcoder2_window "
        "gpt_neox gpt_neox_sequential mistral3 exaone4 exaone4_full hunyuan_alpha seed_oss "
        "seed_oss_biases ernie4_5 ernie4_5_bias "
    ).split()
}
EXPERTS = tuple(
    "mixtral qwen3moe deepseek_v2_experts gptoss glm4moe_norm granitemoe ernie4moe "
    "hunyuanmoe_alpha minimax_partial qwen2moe olmoe deepseek_v2 deepseek_v2_rank "
    "deepseek_v2_groups deepseek_v3_odd deepseek_v3_experts deepseek_v3_yarn glm4moe "
    "glm4moe_groups granitemoe_tied ernie4moe_alone hunyuanmoe minimax".split()
)
FURTHER = sorted(CASES)
CASES |= {name: partial(usual, name) for name in EXPERTS}
CORE = ("llama", "gemma2", "gpt2")


def save(name: str, folder: Path, dtype: str = "float32") -> Path:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CASES[name]()).to(torch.float32)
    randomise(model)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", core(*CORE, further=[*FURTHER, *EXPERTS[:9]], slow=EXPERTS))
def test_logits_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    model_dir = save(name, tmp_path / "model")
    path = write_gguf(model_dir, tmp_path / "model.gguf")
    model = original(model_dir)
    for length in (17, 90):
        assert error(ours(path, length), theirs(model, length)) <= LIMIT


@pytest.mark.thorough
def test_an_older_file_of_deepseek(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both parts of `kv_b_proj` are in one tensor, and the picks of experts are told nowhere."""
    monkeypatch.setattr(gguf_files, "write_latent_sizes", write_older_sizes)
    monkeypatch.setattr(gguf_files, "latent_tensors", lambda config, tensors: tensors)
    model_dir = save("deepseek_v2_experts", tmp_path / "model")
    path = write_gguf(model_dir, tmp_path / "model.gguf")
    assert error(ours(path, 17), theirs(original(model_dir), 17)) <= LIMIT


@pytest.mark.parametrize(
    "name", core("llama3", further=["llama", "qwen2", "qwen3", "gemma2", "gpt2"])
)
def test_the_config_is_that_of_the_original(name: str, tmp_path: Path) -> None:
    model_dir = save(name, tmp_path / "model", "bfloat16")
    path = write_gguf(model_dir, tmp_path / "model.gguf", Type.BF16)
    assert registry.load_config(ModelDir.open(path)) == registry.load_config(
        ModelDir.open(model_dir)
    )


def tensors(path: Path) -> dict[str, torch.Tensor]:
    """Every parameter by its name in our module, as it is read."""
    config = registry.load_config(ModelDir.open(path))
    module = registry.build(config, max_model_len=64)
    with Checkpoint.open(ModelDir.open(path), config, module) as checkpoint:
        return {name: checkpoint.read(name).clone() for name, _ in module.named_parameters()}


KINDS = [Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0]


READ = [(name, kind) for name in ("llama_mqa", "qwen2", "gemma2") for kind in KINDS]
FIRST = [("llama_mqa", Type.Q4_0), ("gemma2", Type.F16)]


@pytest.mark.parametrize(
    ("name", "kind"),
    core(*FIRST, further=[case for case in READ if case not in FIRST]),
    ids=str,
)
def test_numbers_are_those_that_transformers_reads_of_the_file(
    name: str, kind: Type, tmp_path: Path
) -> None:
    model_dir = save(name, tmp_path / "model")
    path = write_gguf(model_dir, tmp_path / "model.gguf", kind)
    read = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=original(model_dir))
    found = tensors(path)
    expected = {name: read["tensors"][name] for name in found}
    for each, tensor in found.items():
        assert torch.equal(tensor.float(), expected[each].float()), each
    q = "model.layers.1.self_attn.q_proj.weight"
    assert found[q].unique().numel() > 100


def test_rows_in_the_order_of_the_file_are_another_model(tmp_path: Path) -> None:
    """The control: without the order of llama.cpp's rows, nothing above would hold."""
    model_dir = save("llama", tmp_path / "model")
    path = write_gguf(model_dir, tmp_path / "model.gguf")
    q, k = (f"model.layers.0.self_attn.{name}.weight" for name in ("q_proj", "k_proj"))
    stored = {t.name: t.data for t in gguf.GGUFReader(path).tensors}
    found = tensors(path)
    for name, theirs_name in ((q, "blk.0.attn_q.weight"), (k, "blk.0.attn_k.weight")):
        assert not np.array_equal(stored[theirs_name], found[name].numpy())
        assert np.array_equal(np.sort(stored[theirs_name], 0), np.sort(found[name].numpy(), 0))


@pytest.mark.parametrize(
    ("order", "head", "count"), [("pairs", 8, 32), ("pairs", 2, 8), ("thirds", 4, 36)]
)
def test_an_order_undoes_what_the_converter_did(order: str, head: int, count: int) -> None:
    rows = torch.arange(count)
    if order == "pairs":
        stored = permute(rows, count // head)
    else:
        config = {"num_attention_heads": count // head // 3}
        stored = changed("gptneox", config, "attention.query_key_value.bias", rows)
    wanted = np.arange(3, count - 1)
    made = {"pairs": Pairs, "thirds": Thirds}[order](head)
    assert stored[made.stored(wanted, count)].tolist() == wanted.tolist()


def split(path: Path, folder: Path, count: int, said: int | None = None) -> Path:
    """The tensors of a file in several, each with the keys that say so, or say another count."""
    file = gguf.GGUFReader(path)
    parts = np.array_split(np.arange(len(file.tensors)), count)
    for number, wanted in enumerate(parts):
        name = f"m-{number + 1:05}-of-{count:05}.gguf"
        writer = gguf.GGUFWriter(str(folder / name), "llama")
        for key, field in file.fields.items():
            if number == 0 and not key.startswith("GGUF.") and key != "general.architecture":
                kinds = field.types
                inner = kinds[1] if len(kinds) > 1 else None
                writer.add_key_value(key, field.contents(), kinds[0], sub_type=inner)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count if said is None else said)
        for tensor in (file.tensors[i] for i in wanted):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return folder / f"m-00001-of-{count:05}.gguf"


def test_a_merged_file_is_whole(tmp_path: Path) -> None:
    """llama-gguf-split --merge leaves the keys of the first part, with a count of 0."""
    path = write_gguf(save("llama", tmp_path / "model"), tmp_path / "model.gguf", Type.Q8_0)
    whole, merged = tensors(path), tensors(split(path, tmp_path, 1, said=0))
    assert whole.keys() == merged.keys()
    assert all(torch.equal(whole[name], merged[name]) for name in whole)
    # Negative control: parts that say so are none.
    with pytest.raises(CheckpointError, match="says that it is file 0 of 0"):
        tensors(split(path, tmp_path, 2, said=0))


@pytest.mark.thorough
def test_a_model_in_parts_is_the_same(tmp_path: Path) -> None:
    path = write_gguf(save("llama", tmp_path / "model"), tmp_path / "model.gguf", Type.Q8_0)
    first = split(path, tmp_path, 3)
    assert registry.load_config(ModelDir.open(first)) == registry.load_config(ModelDir.open(path))
    whole, parts = tensors(path), tensors(first)
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    last = first.with_name("m-00003-of-00003.gguf")
    assert tensors(last).keys() == whole.keys(), "any part stands for all"
    middle = first.with_name("m-00002-of-00003.gguf")
    data = middle.read_bytes()
    middle.unlink()
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003\.gguf cannot be read"):
        tensors(first)
    middle.write_bytes(last.read_bytes())
    with pytest.raises(CheckpointError, match="says that it is file 2 of 3"):
        tensors(first)
    middle.write_bytes(data)
    first.rename(tmp_path / "other.gguf")
    with pytest.raises(CheckpointError, match="says that it is file 0 of 3"):
        tensors(tmp_path / "other.gguf")
