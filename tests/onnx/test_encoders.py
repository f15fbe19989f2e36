"""Models of whole texts in onnxruntime, against transformers: alone, and in a padded batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from torch.nn import functional

from ingot.errors import VerificationError
from ingot.onnx import encoder, export_onnx
from ingot.onnx.output import check_output
from tests.conftest import ROOT
from tests.onnx.support import exported_texts, session
from tests.support.core import core
from tests.support.page_blocks import blocks_of
from tests.support.text_models import (
    KINDS,
    POOLS,
    TEXTS,
    VOCAB,
    colbert_dir,
    projected,
    rows,
    saved,
    splade_dir,
    weighed,
    with_modules,
    without_prompt,
)

MOST = 2e-5  # relative
NAMED_BY_THE_PAGE = "test_texts_become_vectors_as_the_page_says"
FAMILIES = [
    *("roberta", "distilbert", "nomic", "gemma3", "modernbert"),
    *("mpnet", "deberta v3", "deberta even", "deberta one way", "jina v3"),
]


def run(folder: Path, texts: Sequence[Sequence[int]], side: str = "right", **more: Any) -> Any:
    """The outputs for texts in one batch, by name; `more` are inputs of each token, or of each
    text."""
    onnxruntime = session(folder / "model.onnx")
    longest = max(map(len, texts))
    given = {"input_ids": texts, "attention_mask": [[1] * len(text) for text in texts], **more}
    arrays = {}
    for each in onnxruntime.get_inputs():
        values = given.get(each.name, [[0] * len(text) for text in texts])
        if len(each.shape) == 1:
            arrays[each.name] = np.array(values)
            continue
        padding = [[0] * (longest - len(row)) for row in values]
        pairs = zip(values, padding, strict=True)
        arrays[each.name] = np.array([[*v, *p] if side == "right" else [*p, *v] for v, p in pairs])
    names = [each.name for each in onnxruntime.get_outputs()]
    return dict(zip(names, onnxruntime.run(None, arrays), strict=True))


def error(got: np.ndarray, wanted: torch.Tensor) -> float:
    return float(np.linalg.norm(got - wanted.numpy()) / np.linalg.norm(wanted.numpy()))


@pytest.mark.parametrize(
    ("kind", "pooling", "opset"),
    [
        *core(("bert", "mean", 23), further=[(kind, "mean", 23) for kind in FAMILIES]),
        *core(further=[], slow=[(kind, "mean", 18) for kind in ("bert", "gemma3", "mpnet")]),
    ],
)
def test_vectors_are_those_of_transformers(kind: str, pooling: str, opset: int) -> None:
    judge, folder = KINDS[kind].build("Model"), exported_texts(kind, pooling, opset)
    expected = [rows(judge, text) for text in TEXTS]
    wanted = functional.normalize(torch.stack([POOLS[pooling](each) for each in expected]))
    for side in ("right", "left"):
        found = run(folder, TEXTS, side)
        assert error(found["sentence_embedding"], wanted) < MOST
        for text, row, own in zip(TEXTS, found["last_hidden_state"], expected, strict=True):
            place = slice(len(text)) if side == "right" else slice(-len(text), None)
            assert error(row[place], own) < MOST
    assert error(run(folder, TEXTS[:1])["sentence_embedding"], wanted[:1]) < MOST


def test_all_ways_to_pool_lie_side_by_side_without_the_rows_of_prompts(tmp_path: Path) -> None:
    judge = KINDS["bert"].build("Model")
    folder = saved(judge, tmp_path / "model")
    with_modules(folder, *POOLS, normalize=False, include_prompt=False)
    export_onnx(folder, tmp_path / "onnx")
    lengths = [2, 0, 17]

    def wanted(lengths: Sequence[int]) -> torch.Tensor:
        pairs = zip(TEXTS, lengths, strict=True)
        return torch.stack([without_prompt(rows(judge, text), count) for text, count in pairs])

    for side in ("right", "left"):
        found = run(tmp_path / "onnx", TEXTS, side, prompt_length=lengths)["sentence_embedding"]
        assert error(found, wanted(lengths)) < MOST
        assert error(found, wanted([0, 0, 0])) > 1e-2


@pytest.mark.thorough
def test_vectors_of_tokens_are_those_of_pylate(tmp_path: Path) -> None:
    judge, folder = KINDS["bert"].build("Model"), colbert_dir(tmp_path / "model")
    export_onnx(folder, tmp_path / "onnx")
    found = run(tmp_path / "onnx", TEXTS)
    assert [*found] == ["token_embeddings"]
    for text, got in zip(TEXTS, found["token_embeddings"], strict=True):
        assert error(got[: len(text)], projected(folder, rows(judge, text))) < MOST


@pytest.mark.thorough
@pytest.mark.parametrize(("strategy", "log1ps"), [("max", 1), ("sum", 2)])
def test_weights_of_tokens_are_those_of_splade(strategy: str, log1ps: int, tmp_path: Path) -> None:
    folder = splade_dir(tmp_path / "model", strategy=strategy, log1ps=log1ps)
    export_onnx(folder, tmp_path / "onnx")
    judge = KINDS["bert"].build("ForMaskedLM")
    found = run(tmp_path / "onnx", TEXTS)
    assert [*found] == ["sentence_embedding"]
    wanted = torch.stack([weighed(rows(judge, text), strategy, log1ps) for text in TEXTS])
    assert error(found["sentence_embedding"], wanted) < MOST


@pytest.mark.parametrize(
    "kind",
    core(
        further=["modernbert mean", "deberta v3"],
        slow=["bert", "roberta", "distilbert", "modernbert", "mpnet"],
    ),
)
def test_scores_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    judge = KINDS[kind].build("ForSequenceClassification")
    export_onnx(saved(judge, tmp_path / "model"), tmp_path / "onnx")
    found = run(tmp_path / "onnx", TEXTS)
    assert [*found] == ["logits"]
    assert error(found["logits"], torch.stack([rows(judge, text) for text in TEXTS])) < MOST


def test_the_second_text_of_a_pair_has_a_type_of_its_own(tmp_path: Path) -> None:
    judge = KINDS["bert"].build("ForSequenceClassification", 1)
    export_onnx(saved(judge, tmp_path / "model"), tmp_path / "onnx")
    types = [[int(i >= 2) for i in range(len(text))] for text in TEXTS]
    wanted = torch.stack(
        [
            rows(judge, text, token_type_ids=torch.tensor([sorts]))
            for text, sorts in zip(TEXTS, types, strict=True)
        ]
    )
    assert error(run(tmp_path / "onnx", TEXTS, token_type_ids=types)["logits"], wanted) < MOST
    assert error(run(tmp_path / "onnx", TEXTS)["logits"], wanted) > 1e-3


def causal(folder: Path, head: str = "ForCausalLM", **config: Any) -> Any:
    torch.manual_seed(0)
    made = transformers.Qwen3Config(
        vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, intermediate_size=96, max_position_embeddings=64,
        tie_word_embeddings=True, pad_token_id=0, **config,
    )  # fmt: skip
    judge = getattr(transformers, f"Qwen3{head}")(made).eval()
    saved(judge, folder)
    return judge


@pytest.mark.thorough
def test_a_model_that_generates_embeds_where_it_was_made_for_it(tmp_path: Path) -> None:
    judge = causal(tmp_path / "model")
    report = export_onnx(with_modules(tmp_path / "model", "max", "lasttoken"), tmp_path / "onnx")
    assert set(report.operators) == {"model.onnx"}
    found = [rows(judge.model, text) for text in TEXTS]
    wanted = torch.stack([torch.cat([each.amax(0), each[-1]]) for each in found])
    for side in ("right", "left"):
        found = run(report.folder, TEXTS, side)["sentence_embedding"]
        assert error(found, functional.normalize(wanted)) < MOST


@pytest.mark.thorough
def test_a_decoder_with_a_head_for_labels(tmp_path: Path) -> None:
    judge = causal(tmp_path / "model", "ForSequenceClassification", num_labels=3)
    export_onnx(tmp_path / "model", tmp_path / "onnx")
    wanted = torch.stack([rows(judge, text) for text in TEXTS])
    assert error(run(tmp_path / "onnx", TEXTS, "left")["logits"], wanted) < MOST


@pytest.mark.thorough
def test_dense_layers_and_other_formats(tmp_path: Path) -> None:
    folder = with_modules(saved(KINDS["bert"].build("Model"), tmp_path / "model"), dense=[44, 28])
    export_onnx(folder, tmp_path / "exact")
    wanted = torch.tensor(run(tmp_path / "exact", TEXTS)["sentence_embedding"])
    assert wanted.shape == (3, 28)
    for name, limit in (("bfloat16", 1e-2), ("float16", 4e-3)):
        report = export_onnx(folder, tmp_path / name, dtype=name)
        found = run(report.folder, TEXTS)["sentence_embedding"]
        assert MOST < error(found, wanted) < limit
    report = export_onnx(folder, tmp_path / "int8", quantize="int8")
    assert report.operators["model.onnx"]["MatMulNBits"] > 0
    assert MOST < error(run(report.folder, TEXTS)["sentence_embedding"], wanted) < 4e-2


def test_a_file_is_what_programs_for_encoders_expect() -> None:
    folder = exported_texts("bert")
    assert {path.name for path in folder.iterdir()} == {
        "model.onnx", "model.onnx.data", "config.json", "tokenizer.json", "tokenizer_config.json",
        "special_tokens_map.json",
    }  # fmt: skip
    check_output(folder, force=True)
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    ids = ["batch_size", "sequence_length"]
    shapes = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert shapes == {
        "input_ids": ids, "attention_mask": ids, "token_type_ids": ids,
        "last_hidden_state": [*ids, 60], "sentence_embedding": ["batch_size", 60],
    }  # fmt: skip
    assert {node.domain for node in model.graph.node} == {""}


def test_texts_become_vectors_as_the_page_says() -> None:
    page = ROOT / "docs" / "onnx.md"
    (block,) = (each for each in blocks_of(page) if each.test.endswith(f"::{NAMED_BY_THE_PAGE}"))
    folder, found = exported_texts("bert"), dict[str, Any]()
    exec(block.text.replace("DIR", str(folder)), found)
    texts = found["texts"]
    pairs = [zip(text.ids, text.attention_mask, strict=True) for text in texts]
    own = [[token for token, seen in each if seen] for each in pairs]
    assert len(own) == 2 and len(own[0]) != len(own[1])
    judge = KINDS["bert"].build("Model")
    wanted = torch.stack([POOLS["mean"](rows(judge, each)) for each in own])
    assert error(found["vectors"], functional.normalize(wanted)) < MOST


@pytest.mark.slow
def test_a_file_that_is_wrong_does_not_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the check: padding that counts."""
    real = encoder.pooled
    monkeypatch.setattr(
        encoder, "pooled", lambda rows, seen, *given: real(rows, seen | True, *given)
    )
    folder = saved(KINDS["distilbert"].build("Model"), tmp_path / "model")
    with pytest.raises(VerificationError, match="differs from the float32 reference"):
        export_onnx(folder, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()
