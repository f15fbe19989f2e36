"""Which matrices are quantized, and what is refused before any weight is read."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ingot.artifact.formats import Format, Storage
from ingot.compiler.export import export
from ingot.compiler.options import CompileOptions
from ingot.compiler.quantization.choose import (
    alike,
    check_calibration,
    choose_storage,
    label,
    matches,
    nearest,
    read_rule,
)
from ingot.compiler.quantization.graph_matrices import matrices_in
from ingot.compiler.quantization.storage import base_storage, int8_storage
from ingot.errors import UsageError
from ingot.models import registry
from ingot.models.attention_config import AttentionConfig
from ingot.models.layer_config import LayerConfig
from ingot.models.mlp_config import MlpConfig
from ingot.models.model_dir import ModelDir
from ingot.targets.cpu import weights as cpu
from ingot.targets.cuda import weights as cuda
from tests.compiler import plans

MODEL = Path(__file__).parents[3] / "golden" / "models" / "shakespeare"
CONFIG = registry.load_config(ModelDir.open(MODEL))
TABLE = "model.embed_tokens.weight"
DOWN = "model.layers.3.mlp.down_proj.weight"
INT4, INT8 = Storage(4, 32, zeros=True), Storage(8, 32)
STORAGES = (*(Storage(8, n) for n in (32, 64, 128, 0)), *(Storage(4, n) for n in (32, 64, 128)))


@pytest.fixture(scope="module")
def graph() -> torch.fx.GraphModule:
    return plans.graph()


def choose(graph: torch.fx.GraphModule, *keep: str, base: Storage = INT4) -> dict[str, Storage]:
    return choose_storage(matrices_in(graph), base, keep, "bfloat16", fits=whole_groups)


def whole_groups(columns: int, form: Format) -> bool:
    """What a target says that leaves no group short."""
    return columns % form.group == 0 and (form.group != columns or columns % 4 == 0)


def test_everything_is_quantized_and_the_tied_table_in_int8(graph: torch.fx.GraphModule) -> None:
    chosen = choose(graph)
    assert len(chosen) == 6 * 7 + 1
    assert chosen.pop(TABLE) == INT8
    assert set(chosen.values()) == {INT4}
    assert choose_storage(matrices_in(graph), None, (), "bfloat16") == {}


def test_rules_hold_in_order(graph: torch.fx.GraphModule) -> None:
    chosen = choose(graph, "lm_head=int4", "down_proj=none", "layers.3.*=int8", "v_proj=bf16")
    assert chosen[TABLE] == INT4
    assert chosen[DOWN] == INT8
    assert "model.layers.2.mlp.down_proj.weight" not in chosen
    assert "model.layers.3.self_attn.v_proj.weight" not in chosen
    assert choose(graph, "embed_tokens=none").keys() == choose(graph, "lm_head=none").keys()


def test_patterns_fit_whole_ends_of_names() -> None:
    name = "model.layers.3.mlp.down_proj"
    assert matches("down_proj", name) and matches("layers.3.*", name) and matches("*", name)
    assert not matches("proj", name) and not matches("layers.3", name)
    assert not matches("ayers.3.*", name)


@pytest.mark.parametrize(
    "rule, found, hint",
    [
        ("lm_haed=bf16", "matches no matrix", "Near: lm_head"),
        ("down_pro=int8", "matches no matrix", "down_proj"),
        ("zzz=int8", "matches no matrix", "Names end in: down_proj, embed_tokens"),
        ("lm_head", "cannot be read", "PATTERN="),
        ("lm_head=int3", "cannot be read", "PATTERN="),
        ("=int8", "cannot be read", "PATTERN="),
    ],
)
def test_rules_that_cannot_hold_are_refused(
    graph: torch.fx.GraphModule, rule: str, found: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        choose(graph, rule)
    assert found in caught.value.found and rule in caught.value.found
    assert hint in caught.value.hint


def test_bfloat16_in_a_float32_compile_is_refused(graph: torch.fx.GraphModule) -> None:
    with pytest.raises(UsageError, match="float32"):
        choose_storage(matrices_in(graph), INT4, ("lm_head=bf16",), "float32")
    assert TABLE not in choose_storage(matrices_in(graph), INT4, ("lm_head=none",), "float32")


def test_int4_beside_int8_per_channel_is_refused(graph: torch.fx.GraphModule) -> None:
    with pytest.raises(UsageError, match="per channel"):
        choose(graph, "down_proj=int4", base=Storage(8, 0))


@given(st.integers(1, 20_000), st.sampled_from(STORAGES))
def test_every_storage_fits_every_width(columns: int, storage: Storage) -> None:
    form = storage.of(columns)
    assert cpu.fits(columns, form) and cuda.fits(columns, form)
    blocks = form.blocks_of(columns)
    assert (blocks - 1) * form.block < columns <= blocks * form.block


def test_no_width_is_refused() -> None:
    gm = narrow(50, 1001)
    for storage in STORAGES:
        assert len(choose_storage(matrices_in(gm), storage, (), "bfloat16", fits=cpu.fits)) == 8


def test_groups_that_no_kernel_takes_name_the_matrices_and_what_does(
    graph: torch.fx.GraphModule,
) -> None:
    with pytest.raises(UsageError) as caught:
        choose(graph, base=Storage(8, 96))
    told = "no kernel takes groups of 96 in the 256 columns of embed_tokens, q_proj, k_proj"
    assert told in caught.value.found
    assert "down_proj" not in caught.value.found  # 768
    assert "--group-size 32 or 64 or 128 or channel, or --keep 'embed_tokens=" in caught.value.hint
    with pytest.raises(UsageError, match="--group-size 32 or 64 or 128, or"):
        choose(graph, base=Storage(4, 96))


@pytest.mark.parametrize(
    "base, keep", [(Storage(4, 96), "*=int8"), (Storage(8, 96), "lm_head=int4")]
)
def test_channels_are_offered_only_where_nothing_is_int4(
    graph: torch.fx.GraphModule, base: Storage, keep: str
) -> None:
    with pytest.raises(UsageError, match="--group-size 32 or 64 or 128, or"):
        choose(graph, keep, base=base)


def narrow(hidden: int, intermediate: int) -> torch.fx.GraphModule:
    """A layer of those widths; the output of its heads is 64 wide."""
    layer = CONFIG.layers[0]
    assert isinstance(layer.mixer, AttentionConfig) and isinstance(layer.mlp, MlpConfig)
    rope = replace(layer.mixer.rope, rotary_dim=16)
    mixer = replace(layer.mixer, head_dim=16, rope=rope)
    config = replace(
        CONFIG,
        hidden_size=hidden,
        layers=(LayerConfig(mixer=mixer, mlp=replace(layer.mlp, size=intermediate)),),
    )
    return export(registry.build(config, max_model_len=64), config)


@pytest.mark.cases(core=1)
@pytest.mark.parametrize(
    "base, hidden, intermediate, left",
    [
        (INT8, 48, 80, {"o_proj"}),
        (INT4, 48, 96, {"o_proj", "down_proj"}),
        (INT4, 64, 80, {"embed_tokens", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                        "up_proj"}),
        (Storage(8, 0), 37, 50, {"o_proj"}),
    ],
)  # fmt: skip
def test_what_is_told_to_be_kept_is_enough(
    base: Storage, hidden: int, intermediate: int, left: set[str]
) -> None:
    gm = narrow(hidden, intermediate)
    with pytest.raises(UsageError) as caught:
        choose(gm, base=base)
    keep = re.findall(r"--keep '(.+?)'", caught.value.hint)
    chosen = choose(gm, *keep, base=base)
    assert {name.split(".")[-2] for name in chosen} == left


def test_what_targets_take_is_offered() -> None:
    with pytest.raises(UsageError, match="--group-size channel"):
        choose(narrow(48, 80), base=INT8)
    assert len(choose(narrow(48, 80), base=Storage(8, 0))) == 8
    with pytest.raises(
        UsageError, match="no kernel takes one scale for the 50 columns of embed_tokens"
    ):
        choose(narrow(50, 80), base=Storage(8, 0))


def test_targets_say_which_formats_they_take() -> None:
    gm = narrow(50, 80)
    assert len(choose_storage(matrices_in(gm), Storage(8, 0), (), "bfloat16")) == 8
    with pytest.raises(UsageError, match="no kernel takes one scale"):
        choose_storage(
            matrices_in(gm), Storage(8, 0), (), "bfloat16", fits=lambda columns, form: columns != 50
        )


def test_where_no_matrix_can_be_stored_quantization_is_left_out() -> None:
    keep = ("o_proj=none", "down_proj=none")
    with pytest.raises(UsageError) as caught:
        choose(narrow(37, 64), *keep, base=INT8)
    assert caught.value.hint.startswith("Give --quantize none, without")


def test_matrices_that_are_merged_are_named_together(graph: torch.fx.GraphModule) -> None:
    layer = "model.layers.3."
    names = [f"{layer}self_attn.{word}_proj.weight" for word in "qkvo"]
    assert set(alike(matrices_in(graph), names[1:2])) == set(names[:3])
    assert alike(matrices_in(graph), names[3:]) == names[3:]
    assert alike(matrices_in(graph), [TABLE]) == [TABLE]


def test_rules_that_leave_nothing_are_refused(graph: torch.fx.GraphModule) -> None:
    with pytest.raises(UsageError, match="leaves nothing to quantize"):
        choose(graph, "*=none")
    with pytest.raises(UsageError, match="nothing to calibrate"):
        check_calibration(matrices_in(graph), choose(graph, "*_proj=none"))
    check_calibration(
        matrices_in(graph), choose(graph, "*_proj=none", "layers.3.mlp.down_proj=int4")
    )


@pytest.mark.parametrize(
    "options, found",
    [
        ({"quantize": "int3"}, "int3"),
        ({"quantize": "int4", "group_size": "channel"}, "channel"),
        ({"quantize": "int8", "group_size": "48"}, "48"),
        ({"quantize": "int8", "group_size": 0.5}, "0.5"),
        ({"group_size": "32"}, "--group-size"),
        ({"keep": ("a=int8",)}, "--keep"),
        ({"calibrate": Path("x")}, "--calibrate"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict, found: str) -> None:
    with pytest.raises(UsageError, match=found):
        base_storage(CompileOptions(**options), CONFIG)


def test_options_give_the_storage_and_its_label() -> None:
    def base(**options) -> Storage | None:
        return base_storage(CompileOptions(**options), CONFIG)

    assert base() is None
    assert base(quantize="int4") == INT4
    assert base(quantize="int4", group_size=64) == Storage(4, 64, zeros=True)
    assert base(quantize="int5") == Storage(5, 32, zeros=True)
    assert base(quantize="int6", group_size=128) == Storage(6, 128, zeros=True)
    assert base(quantize="int8", group_size="channel") == Storage(8, 0)
    assert base(quantize="int8") == Storage(8, 128)
    assert label({}, calibrated=False) == "none"
    several = {"a": INT4, "b": INT4, "c": Storage(8, 0)}
    assert label(several, calibrated=True) == "int4-g32-zeros + int8-channel, calibrated"


def test_labels_name_the_most_frequent_first_then_by_name() -> None:
    assert label({"a": INT8, "b": INT4}, calibrated=False) == "int4-g32-zeros + int8-g32"
    several = {"a": INT4, "b": INT8, "c": INT8, "d": Storage(8, 64)}
    assert label(several, calibrated=True) == "int8-g32 + int4-g32-zeros + int8-g64, calibrated"


def test_the_last_sign_of_equality_ends_a_pattern() -> None:
    assert read_rule("[=a]*=none", INT4, INT8, "bfloat16") == ("[=a]*", None)
    assert read_rule("a=int8", INT4, Storage(8, 0), "float32") == ("a", Storage(8, 0))
    assert read_rule("a=int4", Storage(8, 64), INT8, "float32") == ("a", Storage(4, 64, zeros=True))
    assert read_rule("a=bf16", INT4, INT8, "bfloat16") == ("a", None)


def test_up_to_three_names_are_near() -> None:
    names = {f"layers.{i}.proj.weight": (f"layers.{i}.proj",) for i in range(9)}
    assert nearest("layers.0.pro", names) == "Near: layers.0.proj, layers.8.proj, layers.7.proj."


def test_what_is_int8_beside_int4_has_a_group_of_its_own(graph) -> None:
    wide = int8_storage(CompileOptions(quantize="int4"))
    assert wide == Storage(8, 128)
    assert int8_storage(CompileOptions(quantize="int4", group_size=64)) == Storage(8, 64)
    chosen = choose_storage(
        matrices_in(graph), INT4, ("layers.3.mlp.down_proj=int8",), "bfloat16", wide
    )
    assert {name for name, stored in chosen.items() if stored == wide} == {TABLE, DOWN}
    assert set(chosen.values()) == {INT4, wide}
