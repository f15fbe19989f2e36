"""Forms of models of whole texts, held against each other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import ingot
from ingot.cli.main import main
from ingot.compare.compare import compare
from ingot.compare.onnx_side import OnnxSide
from ingot.compare.prompts import ComparedPrompt, golden_prompts
from ingot.compare.sides import Side, open_side
from ingot.errors import ModelDirError, UsageError
from ingot.onnx import export_onnx
from tests.onnx.support import exported_texts
from tests.support.core import core
from tests.support.text_models import KINDS, TEXTS, rows, saved, tagger, with_modules

MOST = 2e-5  # relative
PROMPTS = [ComparedPrompt(f"text {i}", tuple(text)) for i, text in enumerate(TEXTS)]


def errors(*sides: str) -> list[float]:
    """The relative error of each side against the last, which must be of other numbers."""
    opened: list[Side] = [open_side(side, max_model_len=64) for side in sides]
    try:
        found = [compare(side, opened[-1], PROMPTS, num_greedy=4) for side in opened[:-1]]
    finally:
        for side in opened:
            side.close()
    assert all(each.measures.cosine > 1 - 1e-9 for each in found)
    assert all(not each.measures.identical and not each.difference for each in found)
    return [each.measures.relative_error for each in found]


def test_an_artifact_its_directory_and_transformers_make_one_vector(
    embedder_artifact: Path,
) -> None:
    model = embedder_artifact.parent / "model"
    assert max(errors(str(embedder_artifact), str(model), f"hf:{model}")) < MOST


def test_a_reranker_gives_one_score(reranker_artifact: Path) -> None:
    model = reranker_artifact.parent / "model"
    assert max(errors(str(reranker_artifact), str(model), f"hf:{model}")) < MOST


def test_a_tagger_gives_each_token_the_same_scores(tmp_path: Path) -> None:
    artifact, model = tagger(), tagger().parent / "model"
    export_onnx(model, tmp_path / "onnx")
    file = tmp_path / "onnx" / "model.onnx"
    assert max(errors(str(artifact), str(file), str(model), f"hf:{model}")) < MOST


@pytest.mark.cases(thorough=2)
@pytest.mark.parametrize("kind", core(further=[k for k in KINDS if k != "bert tanh"]))
def test_all_forms_of_every_family_agree(kind: str, tmp_path: Path) -> None:
    folder = with_modules(saved(KINDS[kind].build("Model"), tmp_path / "model"))
    ingot.compile(folder, tmp_path / "a", dtype="float32", max_num_batched_tokens=64)
    export_onnx(folder, tmp_path / "onnx")
    file = tmp_path / "onnx" / "model.onnx"
    assert max(errors(str(tmp_path / "a"), str(file), str(folder), f"hf:{folder}")) < MOST


@pytest.mark.thorough
def test_labels_of_an_artifact_and_of_onnx_agree(reranker_artifact: Path, tmp_path: Path) -> None:
    export_onnx(reranker_artifact.parent / "model", tmp_path / "onnx")
    assert errors(str(reranker_artifact), str(tmp_path / "onnx" / "model.onnx"))[0] < MOST


def test_an_onnx_file_of_texts_is_read_with_its_config(
    embedder_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = exported_texts("bert") / "model.onnx"
    assert main(["compare", str(embedder_artifact), str(file), "--max-error", "2e-5"]) == 0
    out = capsys.readouterr().out
    assert "vector error" in out and "cosine        1.0000000 or more" in out
    assert main(["compare", str(embedder_artifact), str(file), "--random", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["task"] == "embed" and "mean_kl" not in found["measures"]
    assert len(found["prompts"]) == 3 and found["measures"]["cosine"] > 1 - 1e-9
    assert main(["compare", str(embedder_artifact), str(file), "--max-error", "1e-9"]) == 4
    assert main(["compare", str(embedder_artifact), str(file), "--max-kl", "1"]) == 2
    assert "vectors are no distribution" in capsys.readouterr().err
    for name in ("model.onnx", "model.onnx.data"):
        (tmp_path / name).symlink_to(exported_texts("bert") / name)
    with pytest.raises(UsageError, match=r"no config\.json with a vocab_size"):
        OnnxSide("file", tmp_path / "model.onnx")


def test_golden_texts_are_those_of_the_artifact(embedder_artifact: Path) -> None:
    side = open_side(str(embedder_artifact))
    found = golden_prompts([side])
    assert len(found) > 2 and max(len(prompt.tokens) for prompt in found) > 16
    side.close()


def test_other_weights_are_far_apart(embedder_artifact: Path, tmp_path: Path) -> None:
    """The control of the tests above."""
    folder = with_modules(saved(KINDS["bert tanh"].build("Model"), tmp_path / "model"))
    one, other = open_side(str(embedder_artifact)), open_side(str(folder))
    found = compare(one, other, PROMPTS)
    assert found.measures.relative_error > 1e-2 and found.measures.cosine < 1 - 1e-4
    assert found.worst[0].measures.relative_error > found.worst[-1].measures.relative_error
    one.close()
    other.close()


def test_models_of_other_tasks_are_not_compared(
    embedder_artifact: Path, reranker_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(embedder_artifact), str(reranker_artifact)]) == 2
    assert "makes vectors of texts, and" in capsys.readouterr().err


def test_vectors_of_other_sizes_are_not_compared(embedder_artifact: Path, tmp_path: Path) -> None:
    folder = with_modules(saved(KINDS["bert"].build("Model"), tmp_path / "model"), dense=[44])
    one, other = open_side(str(embedder_artifact)), open_side(str(folder))
    with pytest.raises(UsageError, match=r"gives 60 numbers, and .* 44"):
        compare(one, other, PROMPTS)
    one.close()
    other.close()
    with pytest.raises(UsageError, match="Dense layers behind the model"):
        open_side(f"hf:{folder}")


def test_transformers_may_lack_only_what_makes_no_vector(tmp_path: Path) -> None:
    folder = saved(KINDS["bert"].build("Model"), tmp_path / "model")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in ("pooler.dense.weight", "pooler.dense.bias"):
        del tensors[name]
    save_file(tensors, file, metadata={"format": "pt"})
    assert open_side(f"hf:{folder}").logits(TEXTS[0]).shape == (1, 60)
    del tensors["encoder.layer.1.output.dense.bias"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelDirError, match=r"no weights for encoder\.layer\.1\.output"):
        open_side(f"hf:{folder}")


def test_modules_say_how_transformers_pools(tmp_path: Path) -> None:
    folder = saved(KINDS["bert"].build("Model"), tmp_path / "model")
    guessed = open_side(f"hf:{folder}")
    with_modules(folder, "cls", normalize=False)
    first = open_side(f"hf:{folder}")
    one, other = (side.logits(TEXTS[0])[0] for side in (guessed, first))
    assert np.linalg.norm(one - other) > 0.1
    judge = KINDS["bert"].build("Model")
    wanted = rows(judge, TEXTS[0])
    for got, right in ((one, wanted.mean(0)), (other, wanted[0])):
        assert np.allclose(got, right, atol=2e-5)
