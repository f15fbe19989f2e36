"""`--from transformers` of models of whole texts: its modules give its rows and scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import ingot
from ingot.artifact.programs import TOKENS
from ingot.compiler.interpret import interpret, plan_weights
from ingot.compiler.lower_model import lower_model
from ingot.compiler.model import OpenModel, read_model
from ingot.compiler.options import Clock, CompileOptions, silent
from ingot.errors import CheckpointError, UnsupportedModelError
from ingot.models import registry
from ingot.models.foreign.attention import window_of
from ingot.models.model_dir import ModelDir
from ingot.models.text_modules import read_pooler
from tests.ops.sample_inputs import segments
from tests.support.core import core
from tests.support.text_models import TEXTS, VOCAB, rows, saved, with_modules, write

MOST = 2e-5
PAGE = Path(__file__).parents[2] / "docs" / "embeddings.md"
ROWS, TEXT, TOKEN = "Model", "ForSequenceClassification", "ForTokenClassification"
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5,
    "intermediate_size": 92, "max_position_embeddings": 80, "type_vocab_size": 2,
    "embedding_size": 28, "input_embedding_size": 28, "output_embedding_size": 28,
    "num_key_value_heads": 5, "head_dim": 12, "attention_type": "original_full",
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "mask_token_id": 4,
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 5),
    "dim": 60, "n_layers": 2, "n_heads": 5, "hidden_dim": 92,
}  # fmt: skip
# Classes that no family builds, and what they agree in; with them two that families build.
NO_FAMILY = {
    "Electra": (ROWS, TEXT, TOKEN),
    "Albert": (ROWS, TEXT, TOKEN),
    "Ernie": (ROWS, TEXT, TOKEN),
    "MegatronBert": (ROWS, TEXT, TOKEN),
    "RemBert": (ROWS, TEXT, TOKEN),
    "Data2VecText": (ROWS, TEXT, TOKEN),
    "RobertaPreLayerNorm": (ROWS, TEXT, TOKEN),
    "XLMRobertaXL": (ROWS, TEXT, TOKEN),
    "EuroBert": (ROWS, TOKEN),
    "BigBird": (ROWS, TOKEN),
}
WITH_FAMILY = {"Bert": (ROWS, TEXT, TOKEN), "XLMRoberta": (ROWS, TEXT, TOKEN)}
EVERY = [(n, h) for n, heads in (NO_FAMILY | WITH_FAMILY).items() for h in heads]


def build(name: str) -> Any:
    """A tiny random model of a class."""
    torch.manual_seed(0)
    made = getattr(transformers, name)
    kind = made.config_class
    known = {*kind().to_dict(), *getattr(kind, "attribute_map", {})}
    given = {key: value for key, value in SIZES.items() if key in known}
    labels = {"num_labels": 3} if "Classification" in name else {}
    model = made._from_config(
        kind(**given, **labels), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def read(folder: Path) -> OpenModel:
    options = CompileOptions(library="transformers", dtype="float32", max_num_batched_tokens=64)
    return read_model(ModelDir.open(folder), options, Clock(silent))


def made(folder: Path, texts: list[list[int]] = TEXTS, types: list[int] = ()) -> Tensor:
    """What the plan of a directory gives for some texts side by side."""
    model = read(folder)
    with model.checkpoint as checkpoint:
        plan = lower_model(model, Clock(silent)).plan
        lengths = [*map(len, texts)]
        arrays = {
            "tokens": torch.tensor([token for text in texts for token in text]),
            "positions": torch.cat([torch.arange(n) for n in lengths]),
            "spans": segments(lengths),
        }
        if types:
            arrays["positions"] += torch.tensor(types) * model.pooler.type_stride
        inputs = {name: x.int() for name, x in arrays.items()}
        found = interpret(plan, plan_weights(checkpoint.read), inputs, {})[-1]
    return found[model.resolved.programs[0].names[0]]


def error(got: Tensor, wanted: Tensor) -> float:
    return ((got - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize(
    ("name", "head"),
    core(("Electra", TEXT), ("MegatronBert", ROWS), further=[("Bert", TEXT)], slow=EVERY),
)
def test_rows_and_scores_are_those_of_the_class(name: str, head: str, tmp_path: Path) -> None:
    judge = build(name + head)
    found = [rows(judge, text) for text in TEXTS]
    folder = saved(judge, tmp_path)
    if head == ROWS:
        with_modules(folder)
        wanted = torch.stack([each.mean(0) for each in found])
    else:
        wanted = torch.cat(found) if head == TOKEN else torch.stack(found)
    got = made(folder)
    assert error(got, wanted) < MOST < error(got, wanted.flip(0))
    if head == TOKEN:
        assert read(folder).resolved.programs == (TOKENS,)


def test_the_page_lists_the_classes() -> None:
    listed = PAGE.read_text().split("<!-- classes -->")[1].split("\n\n")[1]
    found = {
        line.split("`")[1]: tuple(part for part in (ROWS, TEXT, TOKEN) if f"`{part}`" in line)
        for line in listed.splitlines()
        if line.startswith("| `")
    }
    assert found == NO_FAMILY


@pytest.mark.thorough
def test_a_family_and_the_class_say_the_same_of_a_directory(tmp_path: Path) -> None:
    folder = with_modules(saved(build("BertModel"), tmp_path), "cls", "max", dense=[44])
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config_sentence_transformers.json", {"prompts": {"query": "To be "}})
    theirs = read(folder)
    theirs.checkpoint.close()
    ours = read_pooler(ModelDir.open(folder), registry.load_config(ModelDir.open(folder)))
    assert theirs.pooler == ours and ours.size == 44 and config["type_vocab_size"] == ours.types
    layer = load_file(folder / "2_Dense" / "model.safetensors")
    found = [rows(build("BertModel"), text) for text in TEXTS]
    pooled = torch.stack([torch.cat([each[0], each.amax(0)]) for each in found])
    wanted = torch.tanh(pooled @ layer["linear.weight"].T + layer["linear.bias"])
    assert error(made(folder), wanted) < MOST


def test_the_second_text_of_a_pair_has_a_type_of_its_own(tmp_path: Path) -> None:
    judge, types = build("ElectraForSequenceClassification"), [0, 0, 1, 1, 1]
    wanted = rows(judge, TEXTS[0], token_type_ids=torch.tensor([types]))[None]
    plain = rows(judge, TEXTS[0])[None]
    got = made(saved(judge, tmp_path), TEXTS[:1], types)
    assert error(got, wanted) < MOST < error(got, plain)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ElectraForPreTraining", "ErnieForMaskedLM"])
def test_a_head_of_another_task_is_left_out(name: str, tmp_path: Path) -> None:
    judge = build(name)
    wanted = torch.stack([rows(judge.base_model, text).mean(0) for text in TEXTS])
    assert error(made(with_modules(saved(judge, tmp_path))), wanted) < MOST


@pytest.mark.thorough
def test_kernels_give_the_vectors_of_a_class(tmp_path: Path) -> None:
    judge = build("ElectraModel")
    folder = with_modules(saved(judge, tmp_path / "m"), normalize=False)
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 8}
    programs = ["encode", "tokens"]
    ingot.compile(folder, tmp_path / "o", library="transformers", programs=programs, **limits)
    found = [rows(judge, text) for text in TEXTS]
    with ingot.Embedder(tmp_path / "o") as embedder:
        got = torch.tensor(embedder.encode(TEXTS))
        assert error(got, torch.stack([each.mean(0) for each in found])) < MOST
        for vectors, each in zip(embedder.encode_tokens(TEXTS), found, strict=True):
            assert error(torch.tensor(vectors), each) < MOST


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("BartModel", "by an encoder and by a decoder"),
        ("ViTForImageClassification", "reads no text"),
        ("LlamaForSequenceClassification", "the rows of a text become one"),
        ("FNetModel", "computes what no op stands for: aten.fft_fftn"),
    ],
)
def test_what_cannot_be_compiled_is_named(name: str, words: str, tmp_path: Path) -> None:
    folder = saved(build(name), tmp_path)
    with pytest.raises(UnsupportedModelError, match=words) as caught:
        made(folder)
    assert caught.value.hint


def test_tensors_that_no_class_has_are_named(tmp_path: Path) -> None:
    folder = saved(build("ElectraModel"), tmp_path)
    path = folder / "model.safetensors"
    save_file({**load_file(path), "encoder.other": torch.zeros(3)}, path)
    with pytest.raises(CheckpointError, match=r"does not use: encoder\.other"):
        read(folder)


def test_masks_of_both_ways_are_known() -> None:
    def both(near: int) -> Any:
        return lambda batch, head, query, key: (query - key).abs() <= near

    assert window_of(lambda b, h, query, key: query >= 0) == (0, False)
    assert window_of(both(7)) == (8, False)
    assert window_of(lambda b, h, query, key: key <= query) == (0, True)
    ahead = lambda b, h, query, key: (key - query < 3) & (query - key < 9)  # noqa: E731
    assert window_of(ahead)[0] is None
