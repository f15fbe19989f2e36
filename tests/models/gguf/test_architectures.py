"""Spellings of all architectures: names of tensors as `gguf` and `transformers` have them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from ingot.models.checkpoints.formats.quantized import EncodedTensor
from ingot.models.checkpoints.mapped_file import TensorInfo
from ingot.models.gguf.architectures import ARCHITECTURES
from ingot.models.gguf.container import GgufFile
from ingot.models.gguf.expert_architectures import WITH_EXPERTS
from ingot.models.gguf.metadata import Metadata
from ingot.models.gguf.model import SmallFiles, open_files
from ingot.models.gguf.tensors import checkpoint_tensors
from tests.support.core import core
from tests.support.gguf_files import Type, write_gguf

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64, "pad_token_id": 0,
}  # fmt: skip
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64}
METADATA = {
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 8,
    "embedding_length": 32,
    "feed_forward_length": 48,
    "block_count": 2,
    "context_length": 64,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.state_size": 8,
    "ssm.inner_size": 32,
}
# Names in files, where modules have others.
PUBLISHED = {("gptneox", "lm_head.weight"): "embed_out.weight"}
MORE = {"command-r": {"use_qk_norm": True}}


def names_of(architecture: str) -> dict[str, str]:
    """The names of a small model's tensors: llama.cpp's -> those of `transformers`."""
    made = getattr(transformers, ARCHITECTURES[architecture].name)
    sizes = GPT2 if architecture == "gpt2" else SIZES | MORE.get(architecture, {})
    with torch.device("meta"):
        model = made(made.config_class(**sizes))
    key = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture)
    names = gguf.get_tensor_name_map(key, 2)
    found = {}
    for theirs, _ in model.named_parameters():
        called = theirs.replace("dt_bias", "dt_proj.bias")  # by the converter
        name = names.get_name(called, try_suffixes=(".weight", ".bias"))
        assert name is not None, theirs
        theirs = theirs.replace("A_log", "decay")  # which the file has
        found[name] = PUBLISHED.get((architecture, theirs), theirs.removeprefix("transformer."))
    return found


CORE = {"llama", "gemma3", "gpt2", "glm4"}


@pytest.mark.cases(thorough=6)
@pytest.mark.parametrize(
    "architecture", core(*sorted(CORE), further=sorted(ARCHITECTURES.keys() - CORE - {"mistral"}))
)
def test_every_tensor_has_its_name_in_the_checkpoint(architecture: str) -> None:
    expected = names_of(architecture)
    assert len(expected) >= 15
    infos = {name: TensorInfo(name, "F32", (64, 32), 0, 8192) for name in expected}
    values = {"general.architecture": architecture}
    values |= {f"{architecture}.{key}": value for key, value in METADATA.items()}
    metadata = Metadata(None, values, infos)
    found = checkpoint_tensors(infos, metadata, ARCHITECTURES[architecture])
    assert found.keys() == set(expected.values())
    for name, theirs in expected.items():
        alone = checkpoint_tensors({name: infos[name]}, metadata, ARCHITECTURES[architecture])
        assert list(alone) == [theirs]


def test_the_page_names_every_architecture() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models_and_cache.md").read_text()
    told = page.split("as llama.cpp names it, is one of")[1].split("and its family")[0]
    assert re.findall(r"`(.+?)`", told) == [*ARCHITECTURES, *WITH_EXPERTS]


def test_a_name_of_no_template_stays_what_it_is() -> None:
    infos = {"blk.0.moon.weight": TensorInfo("blk.0.moon.weight", "F32", (4,), 0, 16)}
    metadata = Metadata(None, {"general.architecture": "llama"}, infos)
    assert checkpoint_tensors(infos, metadata, ARCHITECTURES["llama"]) == infos


EXPERTS = {"num_experts": 3, "num_local_experts": 3, "num_experts_per_tok": 2}
SPARSE = {
    "llama": ("Mixtral", {"intermediate_size": 48}),
    "qwen2moe": ("Qwen2Moe", {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}),
    "qwen3moe": ("Qwen3Moe", {"moe_intermediate_size": 24, "head_dim": 16}),
    "olmoe": ("Olmoe", {"intermediate_size": 32}),
}


@pytest.mark.parametrize("name", core("qwen3moe", further=SPARSE))
def test_experts_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    kind, own = SPARSE[name]
    sizes = {k: v for k, v in SIZES.items() if k != "head_dim"} | EXPERTS | own
    config = getattr(transformers, f"{kind}Config")(**sizes)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    expected = load_file(tmp_path / "model.safetensors")
    path = write_gguf(tmp_path, tmp_path / "m.gguf", Type.Q8_0 if name == "olmoe" else Type.F32)
    (file,) = open_files(path)
    with file:
        assert file.tensors.keys() == expected.keys()
        assert sum(".experts.2." in each for each in file.tensors) == 2 * 3
        for each, tensor in expected.items():
            info = file.tensors[each]
            assert info.shape == tuple(tensor.shape), each
            limit = 0.01 * float(tensor.abs().max()) if name == "olmoe" else 0.0
            assert float((numbers(file, info) - tensor).abs().max()) <= limit, each
    values = json.loads(SmallFiles(path)("config.json"))
    written = json.loads((tmp_path / "config.json").read_text())
    assert values["architectures"] == written["architectures"]
    for key in {*EXPERTS, *own, "norm_topk_prob"} & values.keys() & written.keys():
        assert values[key] == written[key] or key == "norm_topk_prob", key


def numbers(file: GgufFile, info: TensorInfo) -> torch.Tensor:
    """A tensor as float32, by its encoding where it has one."""
    if not isinstance(info, EncodedTensor):
        data = file.bytes(info.start, info.stop).view(np.float32)
        return torch.from_numpy(data.reshape(info.shape).copy())
    (part,) = info.parts
    stored = file.bytes(part.start, part.stop).reshape(part.shape)
    return torch.from_numpy(info.encoding.rows(lambda _: stored, 0, info.shape[0]).numbers())
