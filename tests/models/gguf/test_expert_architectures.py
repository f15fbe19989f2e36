"""GGUF files with experts against the model directories that they were made from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from ingot.errors import CheckpointError, ConfigError, IngotError, UnsupportedModelError
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.model_dir import ModelDir
from tests.support import gguf_files
from tests.support.core import core
from tests.support.gguf_files import Type, write_gguf
from tests.support.tiny_models import EVERY, randomise

Tensors = Mapping[str, torch.Tensor]
FIRST = ("gptoss", "glm4moe_norm", "granitemoe", "ernie4moe", "hunyuanmoe", "minimax_partial")
FURTHER = ("glm4moe", "glm4moe_groups", "granitemoe_tied", "ernie4moe_alone", "minimax")
EXPERTS = "_exps.weight"
SOFTMAX = gguf.ExpertGatingFuncType.SOFTMAX


def save(name: str, folder: Path, **changes: Any) -> Path:
    """A random model in bfloat16."""
    config = EVERY[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomise(model)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def parameters(path: Path) -> tuple[dict[str, torch.Tensor], set[str]]:
    """Every parameter of our module, and the formats of those that are stored quantized."""
    config = registry.load_config(ModelDir.open(path))
    module = registry.build(config, max_model_len=64)
    with Checkpoint.open(ModelDir.open(path), config, module) as checkpoint:
        labels = {matrix.encoding.label for matrix in checkpoint.quantized.values()}
        found = {name: checkpoint.read(name).clone() for name, _ in module.named_parameters()}
    return found, labels


def check_alike(path: Path, model_dir: Path) -> None:
    """The two are one model."""
    config = replace(registry.load_config(ModelDir.open(path)), quantization="")
    assert config == registry.load_config(ModelDir.open(model_dir))
    (found, _), (expected, _) = parameters(path), parameters(model_dir)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name].float(), tensor.float()), name
        assert name.endswith("norm.weight") or tensor.unique().numel() > 1, name


@pytest.mark.parametrize("name", core(*FIRST, further=FURTHER))
def test_a_file_is_the_model_of_its_directory(name: str, tmp_path: Path) -> None:
    model_dir = save(name, tmp_path / "model")
    check_alike(write_gguf(model_dir, tmp_path / "m.gguf", Type.BF16), model_dir)


@pytest.mark.thorough
def test_experts_of_gpt_oss_in_mxfp4_are_kept(tmp_path: Path) -> None:
    """The directory has the numbers that the blocks of the file stand for."""
    model_dir = save("gptoss", tmp_path / "model", intermediate_size=64)
    weights = model_dir / "model.safetensors"
    tensors = {
        name: rounded(tensor) if ".experts." in name and tensor.ndim == 3 else tensor
        for name, tensor in load_file(weights).items()
    }
    save_file(tensors, weights, metadata={"format": "pt"})
    path = write_gguf(
        model_dir, tmp_path / "m.gguf", lambda name: Type.MXFP4 if EXPERTS in name else Type.BF16
    )
    check_alike(path, model_dir)
    assert parameters(path)[1] == {"gguf MXFP4"}


def rounded(experts: torch.Tensor) -> torch.Tensor:
    """Experts [E, inputs, outputs] as numbers of mxfp4, by the package `gguf`."""
    values = experts.float().transpose(1, 2).contiguous().numpy()
    stored = gguf.dequantize(gguf.quantize(values, Type.MXFP4), Type.MXFP4)
    return torch.from_numpy(stored).transpose(1, 2).contiguous().to(experts.dtype)


@pytest.mark.thorough
def test_layers_after_the_last_are_left_out(tmp_path: Path) -> None:
    model_dir = save("glm4moe", tmp_path / "model")
    weights = model_dir / "model.safetensors"
    tensors = load_file(weights)
    beyond = {
        name.replace("layers.1.", "layers.2."): tensor.clone()
        for name, tensor in tensors.items()
        if "layers.1." in name
    }
    assert len(beyond) > 20
    for part in ("eh_proj", "embed_tokens", "enorm", "hnorm", "shared_head.head"):
        beyond[f"model.layers.2.{part}.weight"] = torch.ones(4, 4)
    beyond["model.layers.2.shared_head.norm.weight"] = torch.ones(4)
    save_file(tensors | beyond, weights, metadata={"format": "pt"})
    path = write_gguf(model_dir, tmp_path / "m.gguf", Type.BF16)
    assert "blk.2.nextn.shared_head_norm.weight" in stored_names(path)
    check_alike(path, model_dir)


def stored_names(path: Path) -> set[str]:
    return {tensor.name for tensor in gguf.GGUFReader(path).tensors}


@pytest.mark.thorough
def test_numbers_of_minimax_are_those_that_transformers_reads(tmp_path: Path) -> None:
    """Of these architectures it is the only one whose experts transformers 5.23 reads."""
    model_dir = save("minimax_partial", tmp_path / "model")
    path = write_gguf(model_dir, tmp_path / "m.gguf", Type.BF16)
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    read = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    found, _ = parameters(path)
    for name, tensor in found.items():
        assert torch.equal(tensor.float(), read[theirs(name, read)].float()), name


def theirs(name: str, read: Tensors) -> str:
    other = name.replace("gate.e_score", "e_score")
    return name if name in read else other


Changes = Callable[[str, torch.Tensor], torch.Tensor | None]


@pytest.fixture
def writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Callable[..., Path]:
    """Writes the file of a model with other tensors or keys."""
    caplog.set_level(logging.ERROR)  # keys that are written twice
    converted = gguf_files.converted

    def write(
        name: str,
        change: Changes = lambda name, tensor: tensor,
        more: Mapping[str, torch.Tensor] | None = None,
        keys: Callable[[gguf.GGUFWriter], object] = lambda writer: None,
    ) -> Path:
        def others(*arguments: Any) -> Iterator[tuple[str, torch.Tensor]]:
            for theirs, tensor in converted(*arguments):
                if (other := change(theirs, tensor)) is not None:
                    yield theirs, other
            yield from (more or {}).items()

        monkeypatch.setattr(gguf_files, "converted", others)
        model_dir = save(name, tmp_path / "model")
        return write_gguf(model_dir, tmp_path / "m.gguf", Type.BF16, keys=keys)

    return write


def fault(path: Path) -> IngotError:
    with pytest.raises(IngotError) as raised:
        parameters(path)
    return raised.value


LACKING = {
    "gptoss": ("attn_sinks.weight", "ffn_gate_inp.bias", "ffn_up_exps.bias"),
    "glm4moe_norm": ("exp_probs_b.bias", "ffn_gate_shexp.weight", "attn_k_norm.weight"),
    "granitemoe": ("ffn_gate_inp.weight", "ffn_down_exps.weight"),
    "ernie4moe": ("exp_probs_b.bias", "ffn_up_shexp.weight"),
    "hunyuanmoe": ("ffn_down_shexp.weight", "attn_q_norm.weight"),
    "minimax_partial": ("exp_probs_b.bias", "ffn_gate_exps.weight"),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "tensor"), [(name, tensor) for name in FIRST for tensor in LACKING[name]]
)
def test_a_tensor_that_is_missing(name: str, tensor: str, writing) -> None:
    def without(theirs: str, values: torch.Tensor) -> torch.Tensor | None:
        return None if theirs == f"blk.1.{tensor}" else values

    error = fault(writing(name, without))
    assert isinstance(error, CheckpointError)
    assert error.found.startswith("the checkpoint lacks model.layers.1.")


def one_less(values: torch.Tensor) -> torch.Tensor:
    return values[:-1].contiguous()


def narrower(values: torch.Tensor) -> torch.Tensor:
    return values[..., :-8].contiguous()


@pytest.mark.thorough
@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (one_less, r"lacks .*experts\.[67]\."),
        (narrower, r"tensors of another shape: .*experts\.0\."),
    ],
)
def test_a_stack_of_experts_that_is_misshapen(
    change: Callable[[torch.Tensor], torch.Tensor], told: str, name: str, writing
) -> None:
    def changed(theirs: str, values: torch.Tensor) -> torch.Tensor:
        return change(values) if theirs == "blk.1.ffn_up_exps.weight" else values

    with pytest.raises(CheckpointError, match=told):
        parameters(writing(name, changed))


@pytest.mark.thorough
@pytest.mark.parametrize("name", FIRST)
def test_numbers_of_experts_that_contradict_the_tensors(name: str, writing) -> None:
    path = writing(name, keys=lambda writer: writer.add_expert_count(10))
    with pytest.raises(CheckpointError, match=r"lacks .*experts\.[789]\."):
        parameters(path)
    path = writing(name, keys=lambda writer: writer.add_expert_used_count(11))
    with pytest.raises(ConfigError, match="11"):
        parameters(path)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["glm4moe_norm", "minimax_partial"])
def test_experts_that_are_not_scored_by_sigmoids(name: str, writing) -> None:
    path = writing(name, keys=lambda writer: writer.add_expert_gating_func(SOFTMAX))
    with pytest.raises(ConfigError, match="scoring_func = 'softmax'"):
        parameters(path)


@pytest.mark.thorough
def test_other_models_of_the_same_architecture(writing) -> None:
    more = {"blk.0.ffn_up_shexp.weight": torch.ones(8, 64)}
    with pytest.raises(UnsupportedModelError, match="GraniteMoeSharedForCausalLM"):
        parameters(writing("granitemoe", more=more))
    path = writing("glm4moe", keys=lambda writer: writer.add_rope_dimension_sections([2, 1, 1, 0]))
    with pytest.raises(UnsupportedModelError, match="Glm4vMoeForConditionalGeneration"):
        parameters(path)
    with pytest.raises(ConfigError, match="use_bias"):
        parameters(writing("ernie4moe", more={"blk.0.attn_q.bias": torch.ones(64)}))


@pytest.mark.thorough
def test_gpt_oss_whose_frequencies_are_not_stretched(tmp_path: Path) -> None:
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    model_dir = save("gptoss", tmp_path / "model", rope_parameters=plain)
    path = write_gguf(model_dir, tmp_path / "m.gguf", Type.BF16)
    assert registry.load_config(ModelDir.open(path)).layers[0].mixer.rope.type == "default"
    check_alike(path, model_dir)


@pytest.mark.thorough
def test_a_correction_bias_in_one_dimension_or_two(writing) -> None:
    """The checkpoint of ERNIE has [1, E], and files have either."""
    shapes = []

    def flat(theirs: str, values: torch.Tensor) -> torch.Tensor:
        if theirs == "blk.1.exp_probs_b.bias":
            shapes.append(tuple(values.shape))
            return values.reshape(-1)
        return values

    found, _ = parameters(writing("ernie4moe", flat))
    assert shapes == [(1, 7)]
    bias = found["model.layers.1.mlp.gate.e_score_correction_bias"]
    assert bias.shape == (7,) and np.unique(bias.numpy()).size == 7


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("ernie4moe_alone", "ernie4_5-moe.expert_shared_count"),
        ("glm4moe", "glm4moe.expert_gating_func"),
        ("minimax", "minimax-m2.expert_gating_func"),
    ],
)
def test_a_key_that_a_file_may_lack(name: str, key: str, writing) -> None:
    path = writing(name, keys=lambda writer: writer.kv_data[0].pop(key))
    assert key not in gguf.GGUFReader(path).fields
    check_alike(path, path.with_name("model"))
