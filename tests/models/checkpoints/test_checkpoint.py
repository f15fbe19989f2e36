"""Tensors of checkpoints: what is read, and what is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ingot.errors import CheckpointError
from ingot.models import registry
from ingot.models.blocks.constants import named_constants
from ingot.models.checkpoints import tensor_reader
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.model_dir import ModelDir
from tests.support.checkpoints import (
    EMBED,
    HEAD,
    NORM,
    Q,
    Tensors,
    build,
    edit,
    refused,
    with_header,
)
from tests.support.memory import resident_bytes

# Reading


@pytest.mark.parametrize("kind", ["single", "sharded", "tied", "bfloat16", "float16"])
def test_reads_every_tensor_as_it_is(kind: str, saved: Path) -> None:
    checkpoint, module = build(saved / kind)
    stored: Tensors = {}
    for path in (saved / kind).glob("*.safetensors"):
        stored |= load_file(path)
    names = {name for name, _ in module.named_parameters()}
    with checkpoint:
        assert set(checkpoint.names) == names | {"model.rotary_emb.inv_freq"}
        for name in names:
            got = checkpoint.read(name)
            assert got.dtype == stored[name].dtype == checkpoint.dtype(name)
            assert checkpoint.shape(name) == tuple(got.shape)
            assert torch.equal(got, stored[name])


def test_earlier_tensors_stay_valid_and_writes_stay_private(copy: Callable[[str], Path]) -> None:
    model_dir = copy("single")
    before = (model_dir / "model.safetensors").read_bytes()
    with build(model_dir)[0] as checkpoint:
        first = checkpoint.read(Q)
        expected = first.clone()
        checkpoint.read(NORM)
        assert torch.equal(first, expected)
        first.zero_()
    assert (model_dir / "model.safetensors").read_bytes() == before


def test_another_thread_reads_beside_it(saved: Path) -> None:
    checkpoint, _ = build(saved / "sharded")
    expected = {name: checkpoint.read(name).clone() for name in checkpoint.names}

    def all_same(reader: Checkpoint) -> bool:
        return all(
            torch.equal(reader.read(name), value)
            for _ in range(20)
            for name, value in expected.items()
        )

    with checkpoint, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(all_same, (checkpoint, checkpoint.beside()))) == [True, True]


def test_forgetting_keeps_what_was_read(saved: Path) -> None:
    checkpoint, _ = build(saved / "single")
    held = checkpoint.read(Q)
    before = held.clone()
    checkpoint.forget()
    assert torch.equal(held, before) and torch.equal(checkpoint.beside().read(Q), before)


def test_pieces_are_the_whole(saved: Path) -> None:
    with build(saved / "bfloat16")[0] as checkpoint:
        pieces = [piece.clone() for piece in checkpoint.pieces(EMBED, max_bytes=1000)]
        assert len(pieces) == math.ceil(320 / (1000 // 128))
        assert torch.equal(torch.cat(pieces), checkpoint.read(EMBED))
        assert [tuple(p.shape) for p in checkpoint.pieces(NORM, max_bytes=1)] == [(1,)] * 64
        assert torch.equal(checkpoint.read(EMBED, 7, 9), checkpoint.read(EMBED)[7:9])


def test_constants_are_served(saved: Path) -> None:
    checkpoint, module = build(saved / "single")
    with checkpoint:
        (name, values), *others = named_constants(module).items()
        assert (name, others) == ("model.rotary_emb.inv_freq", [])
        assert torch.equal(checkpoint.read(name), values)
        assert checkpoint.dtype(name) == torch.float32 and checkpoint.shape(name) == (8,)


WITHOUT_MODEL: dict[str, Callable[[str], str]] = {
    "saved without its head": lambda name: name.removeprefix("model."),
    "in front": lambda name: f"language_model.{name}",
    "of a wrapper": lambda name: f"model.{name}",
    "of another": lambda name: f"transformer.{name}",
    "a tower": lambda name: name.replace("model.", "model.language_model."),
    "a tower with its head": lambda name: f"model.language_model.{name}",
    "a tower without its head": lambda name: f"language_model.{name.removeprefix('model.')}",
}


def renamed(how: Callable[[str], str]) -> Callable[[Tensors], None]:
    """A change that gives tensors other names."""

    def change(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[how(name)] = tensors.pop(name)

    return change


@pytest.mark.parametrize("how", WITHOUT_MODEL)
@pytest.mark.parametrize("kind", ["single", "tied"])
def test_one_prefix_more_or_less_in_front_of_all_names(
    kind: str, how: str, saved: Path, copy: Callable[[str], Path]
) -> None:
    model_dir = edit(copy(kind), renamed(WITHOUT_MODEL[how]))
    whole, module = build(saved / kind)
    with whole, build(model_dir)[0] as checkpoint:
        for name, _ in module.named_parameters():
            assert torch.equal(checkpoint.read(name), whole.read(name))


CACHE_SCALES = (
    *("self_attn.k_scale", "self_attn.v_scale", "self_attn.kv_scale", "self_attn.attn.q_scale"),
    *("self_attn.k_proj.k_scale", "self_attn.v_proj.output_scale", "self_attn.k_zero_point"),
)


def test_scales_of_a_cache_are_passed_over_and_told(copy: Callable[[str], Path]) -> None:
    scales = {f"model.layers.1.{name}": torch.ones(1) for name in CACHE_SCALES}
    with build(edit(copy("single"), lambda t: t.update(scales)))[0] as checkpoint:
        (said,) = checkpoint.ignored
        assert said.startswith("scales of a KV cache: model.layers.1.self_attn.")
    with build(copy("tied"))[0] as checkpoint:
        assert checkpoint.ignored == ()


def test_other_scales_are_left_over(copy: Callable[[str], Path]) -> None:
    name = "model.layers.1.self_attn.scale"
    refused(edit(copy("single"), lambda t: t.update({name: torch.ones(1)})), name)


def test_a_prefix_that_only_some_names_lack_is_refused(copy: Callable[[str], Path]) -> None:
    """Negative control: such a checkpoint was put together of two."""
    short = NORM.removeprefix("model.")
    error = refused(edit(copy("single"), renamed(lambda n: short if n == NORM else n)), NORM)
    assert f"does not use: {short}" in error.found


def test_known_unused_tensors_may_be_present(copy: Callable[[str], Path]) -> None:
    name = "model.layers.1.self_attn.rotary_emb.inv_freq"
    build(edit(copy("single"), lambda t: t.update({name: torch.ones(8)})))[0].close()


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.x.self_attn.rotary_emb.inv_freq",
        "model.layers.1.self_attn.rotary_emb.inv_freq.scale",
        "other.model.layers.1.self_attn.rotary_emb.inv_freq",
    ],
)
@pytest.mark.parametrize("kind", ["single", "tied"])
def test_a_pattern_of_unused_tensors_is_their_whole_name(
    name: str, kind: str, copy: Callable[[str], Path]
) -> None:
    refused(edit(copy(kind), lambda t: t.update({name: torch.ones(8)})), name)


def test_head_of_a_tied_model_may_be_stored(copy: Callable[[str], Path]) -> None:
    model_dir = edit(copy("tied"), lambda t: t.update({HEAD: t[EMBED].clone()}))
    checkpoint, module = build(model_dir)
    with checkpoint:
        assert HEAD not in dict(module.named_parameters())
        checkpoint.read(EMBED)


@pytest.mark.parametrize("row", [0, 319])
def test_head_of_a_tied_model_that_differs(row: int, copy: Callable[[str], Path]) -> None:
    def change(tensors: Tensors) -> None:
        tensors[HEAD] = tensors[EMBED].clone()
        tensors[HEAD][row, 3] += 1

    with (
        build(edit(copy("tied"), change))[0] as checkpoint,
        pytest.raises(CheckpointError, match=r"lm_head.weight differs from model.embed"),
    ):
        list(checkpoint.pieces(EMBED, max_bytes=4096))


@pytest.mark.parametrize("row", [None, 0, 319])
def test_stored_head_that_is_compared_in_pieces(
    row: int | None, copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every piece is compared with the same rows of the copy."""

    def change(tensors: Tensors) -> None:
        tensors[HEAD] = tensors[EMBED].clone()
        if row is not None:
            tensors[HEAD][row, 3] += 1

    monkeypatch.setattr(tensor_reader, "PIECE_BYTES", 4096)
    with build(edit(copy("tied"), change))[0] as checkpoint:
        if row is None:
            checkpoint.read(EMBED)
            checkpoint.read(EMBED, 100, 300)
        else:
            with pytest.raises(CheckpointError, match="differs from"):
                checkpoint.read(EMBED, row, row + 1)
            with pytest.raises(CheckpointError, match="differs from"):
                checkpoint.read(EMBED)


def test_head_of_a_tied_model_of_another_shape(copy: Callable[[str], Path]) -> None:
    refused(edit(copy("tied"), lambda t: t.update({HEAD: torch.zeros(3, 64)})), HEAD)


# Tensors


def test_missing_tensor(copy: Callable[[str], Path]) -> None:
    refused(edit(copy("single"), lambda t: t.pop(Q)), f"lacks {Q}")


def test_missing_head_of_an_untied_model(copy: Callable[[str], Path]) -> None:
    refused(edit(copy("single"), lambda t: t.pop(HEAD)), f"lacks {HEAD}")


def test_left_over_tensor(copy: Callable[[str], Path]) -> None:
    error = refused(edit(copy("single"), lambda t: t.update({"extra": torch.ones(3)})), "extra")
    assert "does not use" in error.found


def test_misshapen_tensor(copy: Callable[[str], Path]) -> None:
    wrong = {Q: torch.zeros(64, 63), NORM: torch.zeros(64, 1)}
    error = refused(edit(copy("single"), lambda t: t.update(wrong)), f"{Q} [64, 63]")
    assert f"{NORM} [64, 1] instead of [64]" in error.found


def test_scalar_instead_of_a_tensor(copy: Callable[[str], Path]) -> None:
    refused(edit(copy("single"), lambda t: t.update({NORM: torch.tensor(1.0)})), f"{NORM} []")


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.float8_e4m3fn])
def test_tensor_of_a_wrong_dtype(dtype: torch.dtype, copy: Callable[[str], Path]) -> None:
    refused(edit(copy("single"), lambda t: t.update({Q: t[Q].to(dtype)})), Q)


@pytest.mark.parametrize("kind", ["single", "bfloat16", "float16"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [(0, 0), (63, 63)])
def test_values_that_are_not_finite(
    kind: str, value: float, place: tuple[int, int], copy: Callable[[str], Path]
) -> None:
    def change(tensors: Tensors) -> None:
        tensors[Q][place] = value
        tensors[NORM][0] = torch.finfo(tensors[NORM].dtype).max

    with build(edit(copy(kind), change))[0] as checkpoint:
        checkpoint.read(NORM)
        with pytest.raises(CheckpointError, match=Q) as caught:
            checkpoint.read(Q)
    assert "not finite" in caught.value.found and caught.value.hint


def test_values_are_looked_at_once_by_all_who_read_them(
    copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(
        "ingot.models.checkpoints.tensor_reader.check_finite", lambda name, *_: looked.append(name)
    )
    with build(copy("single"))[0] as checkpoint:
        for reader in (checkpoint, checkpoint, checkpoint.beside()):
            reader.read(Q)
            reader.read(Q, 0, 8)
    assert looked == [Q, Q]  # the whole, and its first rows


# Sizes


LARGE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 4096,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 3,
    "num_attention_heads": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}


@pytest.fixture
def large(tmp_path: Path) -> Checkpoint:
    """Tensors of up to 32 MB, 436 MB in all, in a sparse file of zeros."""
    config = registry.parse_config(LARGE)
    module = registry.build(config, max_model_len=8)
    header, end = {}, 0
    for name, parameter in module.named_parameters():
        start, end = end, end + 2 * parameter.numel()
        shape = list(parameter.shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    path = tmp_path / "model.safetensors"
    with_header(path, json.dumps(header).ljust(8192), b"")
    with path.open("r+b") as file:
        file.truncate(8 + 8192 + end)
    return Checkpoint.open(ModelDir.open(tmp_path), config, module)


def test_streaming_a_large_checkpoint_keeps_memory_small(large: Checkpoint) -> None:
    with large:
        before, peak = resident_bytes(), 0
        for name in large.names:
            for _ in large.pieces(name):
                peak = max(peak, resident_bytes())
        assert peak - before < 100e6
        assert sum(math.prod(large.shape(name)) for name in large.names) * 2 > 400e6


@pytest.mark.parametrize("piece", [2**20, 2**26])
def test_checking_a_large_tensor_drops_its_pages(
    piece: int, large: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_reader, "PIECE_BYTES", piece)
    with large:
        large.read(NORM)
        before = resident_bytes()
        large.read("model.layers.0.mlp.up_proj.weight")
        # Negative control: a tensor that is one piece stays.
        assert (resident_bytes() - before < 10e6) == (piece < 2**25)
