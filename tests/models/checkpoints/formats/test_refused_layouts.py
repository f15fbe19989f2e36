"""Quantized checkpoints that are damaged, or of a kind that ingot does not read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ingot.errors import ModelDirError, UnsupportedModelError
from ingot.models.checkpoints.formats.settings import QuantizationKeys
from ingot.models.model_dir import ModelDir
from ingot.models.registry import method_of
from tests.support.checkpoints import build, edit
from tests.support.quantized_checkpoints import LAYOUTS, Tensors, rewrite, scheme, set_config
from tests.support.tiny_models import save_random

STEM = "model.layers.0.self_attn.q_proj"
GPTQ = LAYOUTS["gptq"].config
PACKED = LAYOUTS["pack-quantized"].config


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, found = tmp_path_factory.mktemp("whole"), {}
    for layout in ("gptq", "gptq-zeros", "awq", "pack-quantized", "int-quantized"):
        found[layout] = save_random("llama", folder / layout)
        rewrite(found[layout], LAYOUTS[layout])
    return found


def pop(end: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(STEM + end)


def change(end: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({STEM + end: make(tensors[STEM + end]).contiguous()})


def again(error: ModelDirError, *named: str) -> None:
    for text in named:
        assert text in error.found, error
    assert error.hint


@pytest.mark.parametrize(
    ("layout", "damage", "named"),
    [
        ("gptq", pop(".qweight"), f"{STEM}.g_idx, {STEM}.qzeros, {STEM}.scales without"),
        ("gptq", pop(".scales"), f"without {STEM}.scales"),
        ("gptq-zeros", pop(".qzeros"), f"no {STEM}.qzeros although sym is false"),
        ("gptq", change(".scales", lambda t: t[:1]), f"{STEM}.scales [1, 64] instead of [2, 64]"),
        ("gptq", change(".scales", torch.Tensor.int), f"{STEM}.scales in I32 instead of F32"),
        ("gptq", change(".qzeros", lambda t: t[:, :4]), f"{STEM}.qzeros [2, 4] instead of [2, 8]"),
        ("gptq", change(".g_idx", lambda t: t[:9]), f"{STEM}.g_idx [9] instead of [64]"),
        ("gptq", change(".qweight", lambda t: t[0]), f"{STEM}.qweight has shape [64]"),
        ("gptq", change(".qweight", lambda t: t[:6]), f"{STEM}.weight has 48 columns"),
        ("awq", pop(".qzeros"), f"without {STEM}.qzeros"),
        ("awq", change(".qweight", lambda t: t[:, :4]), f"{STEM}.qzeros [2, 8] instead of [2, 4]"),
        ("pack-quantized", pop(".weight_scale"), f"without {STEM}.weight_scale"),
        ("pack-quantized", change(".weight_packed", torch.Tensor.long), "in I64 instead of I32"),
        ("int-quantized", pop(".weight"), f"{STEM}.weight_scale without {STEM}.weight"),
        ("int-quantized", change(".weight", lambda t: t[:8]), "weight_scale [64, 1] instead of"),
        (
            "gptq",
            lambda tensors: tensors.update({f"{STEM}.weight": torch.zeros(64, 64)}),
            f"{STEM}.weight as they are and quantized",
        ),
        (
            "gptq",
            lambda tensors: tensors.update({f"{STEM}.weight_packed": torch.zeros(2)}),
            "another quantized format",
        ),
    ],
)
def test_tensors_that_do_not_fit_together(
    layout: str,
    damage: Callable[[Tensors], object],
    named: str,
    whole: dict[str, Path],
    tmp_path: Path,
) -> None:
    model_dir = Path(shutil.copytree(whole[layout], tmp_path / "model"))
    with pytest.raises(ModelDirError) as caught:
        build(edit(model_dir, damage))
    again(caught.value, named)


def test_a_matrix_of_another_shape_is_told_by_its_logical_one(
    whole: dict[str, Path], tmp_path: Path
) -> None:
    model_dir = Path(shutil.copytree(whole["gptq"], tmp_path / "model"))

    def cut(tensors: Tensors) -> None:
        for end, rows in ((".qweight", 4), (".qzeros", 1), (".scales", 1), (".g_idx", 32)):
            tensors[STEM + end] = tensors[STEM + end][:rows].contiguous()

    with pytest.raises(ModelDirError) as caught:
        build(edit(model_dir, cut))
    again(caught.value, f"{STEM}.weight [64, 32] instead of [64, 64]")


@pytest.mark.parametrize(
    ("layout", "settings", "named"),
    [
        ("gptq", {**GPTQ, "bits": 3}, "bits 3"),
        ("gptq", {**GPTQ, "bits": None}, "no bits"),
        ("gptq", {**GPTQ, "bits": True}, "bits True"),
        ("gptq", {**GPTQ, "group_size": "32"}, "group_size '32'"),
        ("gptq", {**GPTQ, "group_size": 40}, "groups of 40 do not divide"),
        ("gptq", {**GPTQ, "group_size": 0}, "groups of 0 do not divide"),
        ("gptq", {**GPTQ, "sym": "yes"}, "sym 'yes'"),
        ("gptq", {**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ("gptq", {**GPTQ, "quant_method": "hqq"}, "quant_method 'hqq'"),
        ("gptq", {**GPTQ, "quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes'"),
        ("gptq", {**GPTQ, "quant_method": "torchao"}, "quant_method 'torchao'"),
        ("gptq", {**GPTQ, "quant_method": ["gptq"]}, "quant_method ['gptq']"),
        ("gptq", {"bits": 4}, "quant_method None"),
        ("gptq", "gptq", "quantization_config 'gptq'"),
        ("gptq", LAYOUTS["int-quantized"].config, "no tensor is stored so"),
        ("awq", {**LAYOUTS["awq"].config, "version": "gemv"}, "version 'gemv'"),
        ("pack-quantized", {**PACKED, "format": "marlin-24"}, "format 'marlin-24'"),
        ("pack-quantized", {**PACKED, "config_groups": {}}, "config_groups {}"),
        ("pack-quantized", {**PACKED, "config_groups": []}, "config_groups []"),
        (
            "pack-quantized",
            {**PACKED, "sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparsity_config",
        ),
        (
            "pack-quantized",
            scheme(4, "group", group_size=32, actorder="group") | {"format": "pack-quantized"},
            "no model.layers.0.mlp.down_proj.weight_g_idx although actorder is group",
        ),
        (
            "pack-quantized",
            scheme(4, "group", group_size=32, symmetric=False) | {"format": "pack-quantized"},
            "down_proj.weight_zero_point although symmetric is false",
        ),
    ],
)
def test_settings_that_are_not_supported(
    layout: str, settings: Any, named: str, whole: dict[str, Path], tmp_path: Path
) -> None:
    model_dir = Path(shutil.copytree(whole[layout], tmp_path / "model"))
    set_config(model_dir, settings)
    with pytest.raises(ModelDirError) as caught:
        build(model_dir)
    message = f"{caught.value.found} {caught.value.hint}"
    assert named in message, message
    assert caught.value.hint


def test_formats_are_not_mixed(whole: dict[str, Path], tmp_path: Path) -> None:
    model_dir = Path(shutil.copytree(whole["pack-quantized"], tmp_path / "model"))
    one = PACKED["config_groups"]["group_0"]
    other = {**one, "weights": {**one["weights"], "num_bits": 8}}
    set_config(model_dir, {**PACKED, "config_groups": {"a": one, "b": other}})
    with pytest.raises(UnsupportedModelError, match="its groups a, b") as caught:
        build(model_dir)
    assert "one format" in caught.value.hint
    alike = {"a": one, "b": {**one, "targets": ["Other"]}}
    set_config(model_dir, {**PACKED, "config_groups": alike})
    checkpoint, _ = build(model_dir)
    checkpoint.close()


def moved(index: int, by: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Gives a column another group."""

    def change_one(groups: torch.Tensor) -> torch.Tensor:
        groups[index] += by
        return groups

    return change_one


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (moved(5, 1), "gives 31 columns to group 0; a group has 32"),
        (moved(40, -1), "gives 33 columns to group 0; a group has 32"),
        (moved(40, 1), "gives 31 columns to group 1; a group has 32"),
        (moved(5, -1), "gives 1 columns to group -1; a group has 32"),
        (lambda groups: groups + 1, "gives columns to group 2, of 2; a group has 32"),
    ],
)
def test_an_order_gives_every_group_its_columns(
    damage: Callable[[torch.Tensor], torch.Tensor],
    named: str,
    whole: dict[str, Path],
    tmp_path: Path,
) -> None:
    model_dir = Path(shutil.copytree(whole["gptq"], tmp_path / "model"))
    checkpoint, _ = build(edit(model_dir, change(".g_idx", damage)))
    with checkpoint:
        for read in (checkpoint.read, checkpoint.scaled, checkpoint.order):
            with pytest.raises(ModelDirError, match=named) as caught:
                read(f"{STEM}.weight")
            again(caught.value, f"{STEM}.g_idx")


def test_an_order_that_settings_promise_is_there(whole: dict[str, Path], tmp_path: Path) -> None:
    model_dir = Path(shutil.copytree(whole["gptq"], tmp_path / "model"))
    set_config(model_dir, {**GPTQ, "desc_act": True})
    checkpoint, _ = build(model_dir)  # groups that are neighbours are an order, too
    with checkpoint:
        assert checkpoint.order(f"{STEM}.weight") is None
    with pytest.raises(ModelDirError) as caught:
        build(edit(model_dir, pop(".g_idx")))
    again(caught.value, f"no {STEM}.g_idx, although desc_act is true")


def test_a_single_group_needs_no_order(tmp_path: Path) -> None:
    layout = LAYOUTS["gptq-channel"]
    model_dir = save_random("llama", tmp_path / "model")
    rewrite(model_dir, replace(layout, config={**layout.config, "desc_act": True}))
    checkpoint, _ = build(edit(model_dir, pop(".g_idx")))
    with checkpoint:
        assert checkpoint.order(f"{STEM}.weight") is None


@pytest.mark.parametrize(
    ("layout", "settings", "named"),
    [
        ("gptq-zeros", {"sym": True}, "supported are 8 alone"),
        ("gptq", {"checkpoint_format": "gptq_v2"}, "supported are 8 alone"),
        ("gptq-zeros", {"checkpoint_format": "gptq"}, "supported are 0 to 15"),
    ],
)
def test_zero_points_that_contradict_the_settings(
    layout: str, settings: dict[str, Any], named: str, whole: dict[str, Path], tmp_path: Path
) -> None:
    model_dir = Path(shutil.copytree(whole[layout], tmp_path / "model"))
    edit(model_dir, change(".qzeros", lambda t: torch.where(t == t[0, 0], torch.tensor(-1), t)))
    if layout == "gptq":
        model_dir = Path(shutil.copytree(whole[layout], tmp_path / "again"))
    set_config(model_dir, {**LAYOUTS[layout].config, **settings})
    checkpoint, _ = build(model_dir)
    with checkpoint, pytest.raises(ModelDirError, match="zero points out of range") as caught:
        checkpoint.read(f"{STEM}.weight")
    again(caught.value, f"{STEM}.qzeros", named)


def test_scales_that_are_not_finite_are_refused(whole: dict[str, Path], tmp_path: Path) -> None:
    model_dir = Path(shutil.copytree(whole["awq"], tmp_path / "model"))
    checkpoint, _ = build(edit(model_dir, change(".scales", lambda t: t / 0)))
    with checkpoint, pytest.raises(ModelDirError, match=r"q_proj.scales holds values that are not"):
        checkpoint.read(f"{STEM}.weight")


def test_the_method_of_a_model(whole: dict[str, Path], tmp_path: Path) -> None:
    assert method_of(ModelDir.open(whole["awq"])) == "awq"
    plain = save_random("llama", tmp_path / "plain")
    assert method_of(ModelDir.open(plain)) == ""
    set_config(plain, "odd")
    assert method_of(ModelDir.open(plain)) == ""


def test_settings_are_found_in_a_text_tower(whole: dict[str, Path], tmp_path: Path) -> None:
    from ingot.models.checkpoints.formats.settings import settings_of

    found = settings_of({"text_config": {"quantization_config": {"bits": 4}}})
    assert found == QuantizationKeys({"bits": 4}, "quantization_config")
    assert settings_of({"quantization_config": None}) is None
