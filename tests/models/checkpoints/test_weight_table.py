"""From tables of families to tensors: fused, transposed and differently spelled sources."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ingot.errors import CheckpointError
from ingot.models import registry
from ingot.models.blocks.decoder import CausalLM
from ingot.models.checkpoints import tensor_reader
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.families.llama import parse
from ingot.models.family import Family, Rows
from ingot.models.model_dir import ModelDir
from ingot.models.templates import expand
from tests.support.checkpoints import EMBED, Tensors, build, edit, refused, with_header
from tests.support.memory import resident_bytes
from tests.support.text_models import KINDS, saved
from tests.support.tiny_models import save_random

# Fused sources


def fused(tmp_path: Path, order: tuple[str, str, str]) -> tuple[Family, Tensors, Path]:
    """A made-up family that stores q, k and v in one tensor, in some order."""
    model_dir = save_random("llama", tmp_path / "fused")
    stored = load_file(model_dir / "model.safetensors")
    rest = dict(stored)
    for layer in range(2):
        base = f"model.layers.{layer}.self_attn"
        parts = [rest.pop(f"{base}.{name}_proj.weight") for name in order]
        rest[f"blocks.{layer}.mix.{layer}"] = torch.cat(parts)
    rest["emb"] = rest.pop(EMBED)
    save_file(rest, model_dir / "model.safetensors")
    prefix = "model.layers.{i}.self_attn"
    family = Family(
        name="fused",
        architectures=("FusedForCausalLM",),
        parse=parse,
        build=CausalLM,
        weights={EMBED: "emb"}
        | {
            f"{prefix}.{name}_proj.weight": Rows("blocks.{i}.mix.{i}", part)
            for part, name in enumerate(order)
        },
    )
    return family, stored, model_dir


@pytest.mark.parametrize("order", [("q", "k", "v"), ("v", "q", "k")])
def test_fused_source_tensors(
    order: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, stored, model_dir = fused(tmp_path, order)
    monkeypatch.setitem(registry._registered, "llama", family)
    with build_as(family, model_dir) as checkpoint:
        for name, values in stored.items():
            assert torch.equal(checkpoint.read(name), values)
            assert torch.equal(torch.cat(list(checkpoint.pieces(name, 700))), values)


def test_fused_source_of_a_wrong_height(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family, _, model_dir = fused(tmp_path, ("q", "k", "v"))
    monkeypatch.setitem(registry._registered, "llama", family)
    edit(model_dir, lambda t: t.update({"blocks.1.mix.1": torch.zeros(127, 64)}))
    with pytest.raises(CheckpointError, match=r"blocks.1.mix.1 \[127, 64\] instead of \[128, 64\]"):
        build_as(family, model_dir)


def build_as(family: Family, model_dir: Path) -> Checkpoint:
    config_path = model_dir / "config.json"
    values = json.loads(config_path.read_text())
    config_path.write_text(json.dumps({**values, "architectures": ["FusedForCausalLM"]}))
    config = registry.load_config(ModelDir.open(model_dir))
    return Checkpoint.open(
        ModelDir.open(model_dir), config, registry.build(config, max_model_len=8)
    )


# Transposed sources


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    return save_random("gpt2", tmp_path / "gpt2")


@pytest.mark.parametrize("piece_bytes", [100, 1000, 2**26])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_transposed_sources(
    dtype: str, piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_reader, "PIECE_BYTES", piece_bytes)
    model_dir = save_random("gpt2_inner", tmp_path, dtype)
    stored = load_file(model_dir / "model.safetensors")
    fused = stored["transformer.h.1.attn.c_attn.weight"]
    layer = "model.layers.1"
    with build(model_dir)[0] as checkpoint:
        for part, name in enumerate("qkv"):
            columns = slice(64 * part, 64 * part + 64)
            weight = f"{layer}.self_attn.{name}_proj.weight"
            assert torch.equal(checkpoint.read(weight), fused[:, columns].T)
            assert torch.equal(checkpoint.read(weight, 3, 10), fused[:, columns].T[3:10])
            assert torch.equal(torch.cat(list(checkpoint.pieces(weight, 700))), fused[:, columns].T)
            bias = stored["transformer.h.1.attn.c_attn.bias"][columns]
            assert torch.equal(checkpoint.read(f"{layer}.self_attn.{name}_proj.bias"), bias)
        up = checkpoint.read(f"{layer}.mlp.up_proj.weight")
        assert up.is_contiguous() and up.shape == checkpoint.shape(f"{layer}.mlp.up_proj.weight")
        assert torch.equal(up, stored["transformer.h.1.mlp.c_fc.weight"].T)


def test_transposed_source_of_a_wrong_shape(gpt2: Path) -> None:
    name = "transformer.h.0.attn.c_attn.weight"
    edit(gpt2, lambda t: t.update({name: t[name].T.contiguous()}))
    refused(gpt2, f"{name} [192, 64] instead of [64, 192]")


@pytest.mark.parametrize("place", [(0, 0), (63, 127), (40, 64)])
def test_values_of_a_transposed_source_that_are_not_finite(
    place: tuple[int, int], gpt2: Path
) -> None:
    name = "transformer.h.0.attn.c_attn.weight"
    edit(gpt2, lambda t: t[name].__setitem__(place, math.nan))
    wrong = "qk"[place[1] // 64]
    with build(gpt2)[0] as checkpoint:
        checkpoint.read("model.layers.0.self_attn.v_proj.weight")
        with pytest.raises(CheckpointError, match=r"c_attn.*not finite"):
            checkpoint.read(f"model.layers.0.self_attn.{wrong}_proj.weight")


WIDE = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 64,
    "n_embd": 4096,
    "n_layer": 1,
    "n_head": 32,
    "n_positions": 16,
}


@pytest.mark.parametrize("piece_bytes", [2**20, 2**30])
def test_reading_rows_of_a_large_transposed_source_keeps_memory_small(
    piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = registry.parse_config(WIDE)
    module = registry.build(config, max_model_len=8)
    header, end = {}, 0
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    for source, shape in published(shapes).items():
        start, end = end, end + 2 * math.prod(shape)
        header[source] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    path = tmp_path / "model.safetensors"
    with_header(path, json.dumps(header).ljust(4096), b"")
    with path.open("r+b") as file:
        file.truncate(8 + 4096 + end)
    monkeypatch.setattr(tensor_reader, "PIECE_BYTES", piece_bytes)
    with Checkpoint.open(ModelDir.open(tmp_path), config, module) as checkpoint:
        checkpoint.read("model.norm.weight")
        before, peak = resident_bytes(), 0
        original = checkpoint._reader.forget

        def watched() -> None:
            nonlocal peak
            peak = max(peak, resident_bytes())
            original()

        monkeypatch.setattr(checkpoint._reader, "forget", watched)
        checkpoint.read("model.layers.0.mlp.up_proj.weight", 0, 64)
    # The source has 134 MB. Negative control: read as one piece, all of it is in memory.
    assert (peak - before < 20e6) == (piece_bytes == 2**20)


def published(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The tensors of a GPT-2 checkpoint of one layer for a module with these parameters."""
    names = {
        "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2",
        "mlp.up_proj": "mlp.c_fc",
    }
    names |= {"self_attn.o_proj": "attn.c_proj", "mlp.down_proj": "mlp.c_proj"}
    found = {"wte.weight": shapes[EMBED], "wpe.weight": shapes["model.embed_positions.weight"]}
    for kind in ("weight", "bias"):
        found[f"ln_f.{kind}"] = shapes[f"model.norm.{kind}"]
        for ours, theirs in names.items():
            found[f"h.0.{theirs}.{kind}"] = shapes[f"model.layers.0.{ours}.{kind}"][::-1]
        rows, *columns = shapes[f"model.layers.0.self_attn.q_proj.{kind}"]
        found[f"h.0.attn.c_attn.{kind}"] = (*columns, 3 * rows)
    return found


# Spellings


def unprefixed(tensors: Tensors) -> None:
    """As the first files of GPT-2 are: no prefix, and masks beside the weights."""
    for name in list(tensors):
        tensors[name.removeprefix("transformer.")] = tensors.pop(name)
    for layer in range(2):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 512, 512).tril()
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)


def test_names_with_and_without_a_prefix(gpt2: Path, tmp_path: Path) -> None:
    with build(gpt2)[0] as checkpoint:
        expected = {name: checkpoint.read(name).clone() for name in checkpoint.names}
    with build(edit(gpt2, unprefixed))[0] as checkpoint:
        assert set(checkpoint.names) == set(expected)
        for name, values in expected.items():
            assert torch.equal(checkpoint.read(name), values)


def test_a_head_named_as_in_the_module_of_transformers(tmp_path: Path) -> None:
    model_dir = save_random("gpt_neox", tmp_path / "neox")
    with build(model_dir)[0] as checkpoint:
        expected = checkpoint.read("lm_head.weight").clone()
    edit(model_dir, lambda t: t.update({"lm_head.weight": t.pop("embed_out.weight")}))
    with build(model_dir)[0] as checkpoint:
        assert torch.equal(checkpoint.read("lm_head.weight"), expected)


def test_masks_may_have_the_prefix(gpt2: Path) -> None:
    name = "transformer.h.1.attn.masked_bias"
    build(edit(gpt2, lambda t: t.update({name: torch.tensor(-1e4)})))[0].close()
    refused(
        edit(gpt2, lambda t: t.update({"transformer.h.x.attn.bias": torch.ones(1)})), "h.x.attn"
    )


def test_both_spellings_of_one_tensor(gpt2: Path) -> None:
    name = "transformer.wte.weight"
    edit(gpt2, lambda t: t.update({"wte.weight": t[name].clone()}))
    assert "same tensor" in refused(gpt2, "wte.weight").found


@pytest.mark.parametrize("head", ["lm_head.weight", "transformer.lm_head.weight"])
@pytest.mark.parametrize("row", [None, 319])
def test_stored_head_of_a_tied_model(head: str, row: int | None, gpt2: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors[head] = tensors["transformer.wte.weight"].clone()
        if row is not None:
            tensors[head][row, 0] += 1

    with build(edit(gpt2, change))[0] as checkpoint:
        if row is None:
            checkpoint.read(EMBED)
        else:
            with pytest.raises(CheckpointError, match=f"{head} differs from transformer.wte"):
                checkpoint.read(EMBED)


@pytest.mark.parametrize(
    ("template", "matched", "others"),
    [
        ("a.b", ["a.b"], ["axb", "a.b.c", "a"]),
        ("h.{i}.x.{i}", ["h.0.x.0", "h.12.x.12"], ["h.0.x.1", "h.a.x.a", "h..x."]),
        ("h.{i}.ln.{kind}", ["h.3.ln.weight", "h.3.ln.a.b"], ["h.3.ln.", "h.x.ln.weight"]),
        ("{rest}", ["a", "a.b"], [""]),
    ],
)
def test_templates(template: str, matched: list[str], others: list[str]) -> None:
    pattern = expand(template)
    assert all(pattern.fullmatch(name) for name in matched)
    assert not any(pattern.fullmatch(name) for name in others)


# Sources of what is computed while it is read


def deberta(tmp_path: Path) -> Path:
    return saved(KINDS["deberta v3"].build("Model"), tmp_path)


QUERIES, KEYS = (f"model.layers.1.self_attn.{name}.weight" for name in ("q_bias", "k_bias"))
TABLE = "encoder.rel_embeddings.weight"


def test_products_are_made_while_they_are_read(tmp_path: Path) -> None:
    folder = deberta(tmp_path)
    stored = load_file(folder / "model.safetensors")
    norm = stored["encoder.LayerNorm.weight"], stored["encoder.LayerNorm.bias"]
    table = torch.nn.functional.layer_norm(stored[TABLE], (60,), *norm, 1e-7)
    with build(folder)[0] as checkpoint:
        for name, other in ((QUERIES, "key_proj"), (KEYS, "query_proj")):
            base = f"encoder.layer.1.attention.self.{other}"
            made = table @ stored[f"{base}.weight"].T + stored[f"{base}.bias"]
            wanted = made.unflatten(-1, (3, 20)).transpose(0, 1).reshape(3 * 32, 20)
            torch.testing.assert_close(checkpoint.read(name), wanted)
            assert torch.equal(checkpoint.read(name, 5, 40), checkpoint.read(name)[5:40])
            assert torch.equal(torch.cat([*checkpoint.pieces(name, 700)]), checkpoint.read(name))
            assert checkpoint.dtype(name) == torch.float32


def test_what_products_are_made_of_is_checked(tmp_path: Path) -> None:
    folder = deberta(tmp_path)
    edit(folder, lambda t: t.update({TABLE: t[TABLE][:-1].clone()}))
    refused(folder, f"{TABLE} [31, 60] instead of [32, 60]")
    edit(folder, lambda t: t.pop(TABLE))
    refused(folder, f"lacks {TABLE}")
    edit(folder, lambda t: t.update({TABLE: torch.full((32, 60), math.nan)}))
    with (
        build(folder)[0] as checkpoint,
        pytest.raises(CheckpointError, match=f"{TABLE} holds values that are not finite"),
    ):
        checkpoint.read(QUERIES)


def test_all_layers_read_the_table_that_they_share(tmp_path: Path) -> None:
    folder = saved(KINDS["mpnet"].build("Model"), tmp_path)
    table = load_file(folder / "model.safetensors")["encoder.relative_attention_bias.weight"]
    with build(folder)[0] as checkpoint:
        for layer in range(3):
            assert torch.equal(checkpoint.read(f"model.layers.{layer}.self_attn.bias"), table.T)
    name = "encoder.relative_attention_bias.weight"
    edit(folder, lambda t: t.update({name: table[:, :2].clone()}))
    refused(folder, f"{name} [32, 2] instead of [32, 3]")
