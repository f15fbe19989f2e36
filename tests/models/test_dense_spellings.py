"""Files of dense families as they were published: other names of tensors and of keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ingot.models import registry
from ingot.models.model_dir import ModelDir
from tests.models.test_against_transformers import check
from tests.support.checkpoints import Tensors, build, edit, refused
from tests.support.core import core
from tests.support.tiny_models import save_random


def rewrite(model_dir: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """Changes the config.json of a model directory."""
    path = model_dir / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    return model_dir


def tower(outer: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The config as that of the text tower in one of images."""

    def change(values: dict[str, Any]) -> dict[str, Any]:
        inner = {k: v for k, v in values.items() if k not in ("architectures", "dtype")}
        return {**outer, "dtype": values["dtype"], "text_config": inner, "vision_config": {"a": 1}}

    return change


def renamed(prefixes: dict[str, str]) -> Callable[[Tensors], None]:
    """Other prefixes of all tensors, and some of images beside them."""

    def change(tensors: Tensors) -> None:
        for name in list(tensors):
            for ours, theirs in prefixes.items():
                if name.startswith(ours):
                    tensors[theirs + name.removeprefix(ours)] = tensors.pop(name)
                    break
        stem = next(iter(prefixes.values())).split("language_model")[0]
        tensors[f"{stem}vision_tower.layers.0.weight"] = torch.ones(3, 3)
        tensors[f"{stem}multi_modal_projector.weight"] = torch.ones(2)

    return change


OLDER = {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."}
NEWER = {"model.": "model.language_model."}
GEMMA3 = {"architectures": ["Gemma3ForConditionalGeneration"], "mm_tokens_per_image": 256}
MISTRAL3 = {"architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10}
TOWERS = [("gemma3", GEMMA3, OLDER), ("gemma3", GEMMA3, NEWER)]
TOWERS += [(name, MISTRAL3, OLDER) for name in ("mistral3", "mistral")]


def same_tensors(one: Path, other: Path) -> None:
    """Both directories hold the same model, tensor by tensor."""
    first, second = build(one)[0], build(other)[0]
    with first, second:
        assert set(first.names) == set(second.names)
        for name in first.names:
            assert torch.equal(first.read(name), second.read(name)), name


@pytest.mark.parametrize(("name", "outer", "prefixes"), core(*TOWERS[:1], further=TOWERS))
def test_a_text_tower_is_the_model_alone(
    name: str, outer: dict[str, Any], prefixes: dict[str, str], tmp_path: Path
) -> None:
    alone = save_random(name, tmp_path / "alone")
    inside = rewrite(save_random(name, tmp_path / "inside"), tower(outer))
    edit(inside, renamed(prefixes))
    one, other = (
        registry.load_config(ModelDir.open(alone)),
        registry.load_config(ModelDir.open(inside)),
    )
    assert one.layers == other.layers and one.tie_embeddings == other.tie_embeddings
    assert other.architecture == outer["architectures"][0]
    same_tensors(alone, inside)


def test_a_tensor_that_is_of_no_tower_is_refused(tmp_path: Path) -> None:
    inside = rewrite(save_random("gemma3", tmp_path), tower(GEMMA3))
    edit(inside, renamed(OLDER))
    refused(edit(inside, lambda t: t.update({"audio_tower.w": torch.ones(1)})), "audio_tower.w")


def flat_neox(values: dict[str, Any]) -> dict[str, Any]:
    rope = values.pop("rope_parameters")
    own = {"rotary_emb_base": rope["rope_theta"], "rotary_pct": rope["partial_rotary_factor"]}
    return values | own


def test_gpt_neox_as_published(tmp_path: Path) -> None:
    """Masks and frequencies stand beside the weights, and rotary keys have names of their own."""

    def change(tensors: Tensors) -> None:
        for i in range(2):
            base = f"gpt_neox.layers.{i}.attention"
            tensors[f"{base}.bias"] = torch.ones(1, 1, 4, 4, dtype=torch.bool)
            tensors[f"{base}.masked_bias"] = torch.tensor(-1e9)
            tensors[f"{base}.rotary_emb.inv_freq"] = torch.ones(2)

    model_dir = rewrite(save_random("gpt_neox", tmp_path), flat_neox)
    check(edit(model_dir, change), (17,))


def test_queries_keys_and_values_follow_on_each_other_head_by_head(tmp_path: Path) -> None:
    model_dir = save_random("gpt_neox", tmp_path)
    stored: Tensors = {}
    edit(model_dir, stored.update)
    fused = stored["gpt_neox.layers.1.attention.query_key_value.weight"].view(4, 3, 16, 64)
    bias = stored["gpt_neox.layers.1.attention.query_key_value.bias"].view(4, 3, 16)
    with build(model_dir)[0] as checkpoint:
        for part, name in enumerate("qkv"):
            base = f"model.layers.1.self_attn.{name}_proj"
            expected = fused[:, part].reshape(64, 64)
            assert torch.equal(checkpoint.read(f"{base}.weight"), expected)
            assert torch.equal(checkpoint.read(f"{base}.weight", 5, 50), expected[5:50])
            pieces = list(checkpoint.pieces(f"{base}.weight", 7 * 64 * 4))
            assert torch.equal(torch.cat(pieces), expected) and len(pieces) == 10
            assert torch.equal(checkpoint.read(f"{base}.bias"), bias[:, part].reshape(64))


def test_a_fused_tensor_of_another_height_is_refused(tmp_path: Path) -> None:
    name = "gpt_neox.layers.1.attention.query_key_value.weight"
    model_dir = edit(
        save_random("gpt_neox", tmp_path), lambda t: t.update({name: torch.ones(96, 64)})
    )
    refused(model_dir, f"{name} [96, 64] instead of [192, 64]")


def older_ropes(values: dict[str, Any]) -> dict[str, Any]:
    ropes = values.pop("rope_parameters")
    full = ropes["full_attention"]
    theta, _ = full.pop("rope_theta"), values.pop("_sliding_window_pattern", None)
    local = ropes["sliding_attention"]["rope_theta"]
    return values | {"rope_theta": theta, "rope_local_base_freq": local, "rope_scaling": full}


@pytest.mark.thorough
def test_rotations_of_gemma_3_in_the_older_spelling(tmp_path: Path) -> None:
    newer = registry.load_config(ModelDir.open(save_random("gemma3_ropes", tmp_path)))
    assert registry.load_config(ModelDir.open(rewrite(tmp_path, older_ropes))) == newer
    check(tmp_path, (17,))


@pytest.mark.parametrize("spelling", core("su", further=["yarn", "longrope"]))
def test_longrope_of_phi_3_by_all_its_names(spelling: str, tmp_path: Path) -> None:
    newer = registry.load_config(ModelDir.open(save_random("phi3_longrope", tmp_path)))

    def change(values: dict[str, Any]) -> dict[str, Any]:
        rope = values.pop("rope_parameters")
        flat = {key: rope.pop(key) for key in ("rope_theta", "partial_rotary_factor")}
        rope.pop("rope_type")
        return values | flat | {"rope_scaling": {**rope, "type": spelling}}

    assert registry.load_config(ModelDir.open(rewrite(tmp_path, change))) == newer
