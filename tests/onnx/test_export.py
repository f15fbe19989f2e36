"""What is exported says in onnxruntime what `transformers` says of the model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from ingot.errors import UsageError
from ingot.onnx import export_onnx
from tests.end_to_end.support import judge, judged_logits, random_tokens, relative_error
from tests.onnx.support import CACHED, PLAIN, Cached, cached_logits, exported, plain_logits, session
from tests.support import sunk_model
from tests.support.core import core
from tests.support.latent_models import CASES as LATENT
from tests.support.quantized_checkpoints import LAYOUTS, plain, rewrite
from tests.support.tiny_models import CASES, TRAINED, save_random

LIMIT = 1e-4
LENGTHS = (1, 17, 300)
FIXED_BY_LENGTH = ("dynamic", "longrope")  # transformers changes frequencies with the length
DENSE_LATENT = [name for name, config in LATENT.items() if config().first_k_dense_replace > 1]
WRITTEN_OUT = [
    "deepseek_v2",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gpt2",
    "llama_yarn",
    "gemma2_no_caps",
]


def check(name: str, opset: int) -> None:
    fixed = any(rope in name for rope in FIXED_BY_LENGTH)
    longest = 300 if fixed or "gpt2" not in name else TRAINED
    model_dir, folder = exported(name, opset=opset, max_model_len=max(longest, 300))
    reference = judge(model_dir)
    for length in (300,) if fixed else LENGTHS:
        tokens = random_tokens(length)
        expected = judged_logits(reference, tokens)
        assert expected.std() > 0.1, "degenerate logits prove nothing"
        assert relative_error(plain_logits(folder / PLAIN, tokens), expected) <= LIMIT
        got = cached_logits(folder / CACHED, tokens, chunk=max(7, length // 3))
        assert relative_error(got, expected) <= LIMIT


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize(
    "name",
    core("llama", further=["gpt2", "gemma2", "deepseek_v3"], slow=[*sorted(CASES), *DENSE_LATENT]),
)
def test_logits_are_those_of_transformers(name: str) -> None:
    check(name, 23)


@pytest.mark.slow
@pytest.mark.parametrize("name", core(further=["gemma2"], slow=WRITTEN_OUT))
def test_logits_are_those_of_transformers_in_opset_18(name: str) -> None:
    check(name, 18)


def inputs_of(model: onnx.ModelProto) -> dict[str, list[int | str]]:
    return shapes(model.graph.input)


def shapes(values: object) -> dict[str, list[int | str]]:
    return {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in values  # type: ignore[attr-defined]
    }


def test_inputs_and_outputs_are_named_as_other_tools_read_them() -> None:
    _, folder = exported("llama", opset=23, max_model_len=300)
    plain, cached = (onnx.load(folder / n, load_external_data=False) for n in (PLAIN, CACHED))
    ids = ["batch_size", "sequence_length"]
    assert inputs_of(plain) == {"input_ids": ids, "position_ids": ids}
    assert shapes(plain.graph.output) == {"logits": [*ids, 320]}
    pairs = [f"{i}.{kind}" for i in range(2) for kind in ("key", "value")]
    mask = ["batch_size", "total_sequence_length"]
    past = ["batch_size", 2, "past_sequence_length", 16]
    present = ["batch_size", 2, "total_sequence_length", 16]
    assert inputs_of(cached) == {
        "input_ids": ids, "attention_mask": mask, "position_ids": ids,
        **{f"past_key_values.{pair}": past for pair in pairs},
    }  # fmt: skip
    assert shapes(cached.graph.output) == {
        "logits": [*ids, 320],
        **{f"present.{pair}": present for pair in pairs},
    }


def test_operators_are_standard_and_weights_are_shared() -> None:
    _, folder = exported("llama", opset=23, max_model_len=300)
    for name in (PLAIN, CACHED):
        model = onnx.load(folder / name, load_external_data=False)
        onnx.checker.check_model(folder / name)
        assert {node.domain for node in model.graph.node} == {""}
        assert [(each.domain, each.version) for each in model.opset_import] == [("", 23)]
        operators = [node.op_type for node in model.graph.node]
        assert [operators.count(op) for op in ("Attention", "RMSNormalization")] == [2, 5]
        assert operators.count("RotaryEmbedding") == 4
        assert not model.functions
        large = [each for each in model.graph.initializer if each.external_data]
        assert len(large) == 2 * 7 + 2  # the matrices of two layers, embedding and head
        where = {entry.value for e in large for entry in e.external_data if entry.key == "location"}
        assert where == {"model.onnx.data"}
        text = model.SerializeToString()
        assert b"/site-packages/" not in text and b"ingot/onnx" not in text


@pytest.mark.thorough
def test_opset_18_is_written_out() -> None:
    _, folder = exported("gemma2", opset=18, max_model_len=300)
    model = onnx.load(folder / CACHED, load_external_data=False)
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 18)]
    newer = {"Attention", "RMSNormalization", "RotaryEmbedding", "Gelu"}
    assert not newer & {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("opset", core(23, further=[18]))
def test_a_batch_says_what_its_sequences_say_alone(opset: int) -> None:
    """Sequences of several lengths, padded on the left, whose next tokens come together."""
    _, folder = exported("llama", opset=opset, max_model_len=300)
    prompts = [random_tokens(length) for length in (3, 40, 17)]
    ids, mask = (np.zeros((3, 40), np.int64) for _ in range(2))
    for row, prompt in enumerate(prompts):
        ids[row, -len(prompt) :], mask[row, -len(prompt) :] = prompt, 1
    model = Cached(folder / CACHED, batch=3)
    first, second = model.run(ids, mask), model.run(np.full((3, 1), 5))
    for row, prompt in enumerate(prompts):
        alone = plain_logits(folder / PLAIN, [*prompt, 5])
        got = np.concatenate((first[row, -len(prompt) :], second[row]))
        assert relative_error(got, alone) <= 1e-5
    other = Cached(folder / CACHED, batch=3).run(ids)  # the control: padding that is not masked
    assert relative_error(other[0, -1], first[0, -1]) > 1e-3


@pytest.mark.parametrize("opset", core(further=[23], slow=[18]))
def test_sinks_are_written_out(opset: int, tmp_path: Path) -> None:
    model = sunk_model.save(tmp_path / "model")
    with sunk_model.known():
        export_onnx(tmp_path / "model", tmp_path / "onnx", opset=opset)
    for length in (1, 17, 100):
        ids = sunk_model.tokens(length)
        expected = sunk_model.judged(model, ids)
        for got in (
            plain_logits(tmp_path / "onnx" / PLAIN, ids),
            cached_logits(tmp_path / "onnx" / CACHED, ids, chunk=5),
        ):
            assert sunk_model.error(torch.tensor(got), expected) <= LIMIT
            without = sunk_model.judged(model, ids, sinks=False)
            assert sunk_model.error(torch.tensor(got), without) > 4e-2


FORMATS = {
    "bfloat16": ({"dtype": "bfloat16"}, LIMIT),
    "float16": ({"dtype": "float16"}, 4e-3),
    "int8": ({"quantize": "int8"}, 4e-2),
    "int4": ({"quantize": "int4"}, 2.5e-1),
    "int4, float16": ({"quantize": "int4", "dtype": "float16"}, 2.5e-1),
}


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize(
    ("name", "kind", "opset"),
    core(
        further=[("llama_tied", kind, 23) for kind in ("bfloat16", "float16", "int8", "int4")]
        + [("llama_width_100", "int4", 23)],
        slow=product(["llama_tied", "gemma2", "llama_width_100"], FORMATS, [23, 18]),
    ),
)
def test_every_format_of_weights_runs(name: str, kind: str, opset: int) -> None:
    """Of a checkpoint in bfloat16, which stays what it is. The limits are those of artifacts."""
    options, limit = FORMATS[kind]
    model_dir, folder = exported(name, "bfloat16", opset=opset, group_size="", **options)
    tokens = random_tokens(40)
    expected = judged_logits(judge(model_dir), tokens)
    assert relative_error(plain_logits(folder / PLAIN, tokens), expected) <= limit
    got = cached_logits(folder / CACHED, tokens, chunk=9)
    assert relative_error(got, expected) <= limit
    past = {each.type for each in session(folder / CACHED).get_inputs()[3:]}
    assert past == {"tensor(float16)" if options.get("dtype") == "float16" else "tensor(float)"}
    model = onnx.load(folder / CACHED, load_external_data=False)
    domains = {node.domain for node in model.graph.node}
    assert domains == ({"", "com.microsoft"} if "quantize" in options else {""})


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("layout", core(further=["gptq-ordered", "awq"], slow=LAYOUTS))
def test_integers_of_a_checkpoint_are_those_of_the_file(layout: str, tmp_path: Path) -> None:
    """transformers runs the numbers that they stand for. Embedding and head become int8."""
    model_dir = save_random("llama", tmp_path / "model", tokenizer=True)
    numbers = Path(shutil.copytree(model_dir, tmp_path / "numbers"))
    plain(numbers, rewrite(model_dir, LAYOUTS[layout]))
    report = export_onnx(model_dir, tmp_path / "onnx", max_model_len=300)
    assert report.operators[CACHED]["MatMulNBits"] >= 2 * 7
    tokens = random_tokens(40)
    expected = judged_logits(judge(numbers), tokens)
    for got in (
        plain_logits(tmp_path / "onnx" / PLAIN, tokens),
        cached_logits(tmp_path / "onnx" / CACHED, tokens, chunk=9),
    ):
        assert relative_error(got, expected) <= 1e-2


@pytest.mark.slow
def test_integers_that_the_operator_does_not_take_are_exported_as_numbers(tmp_path: Path) -> None:
    """A scale for every 8 columns: its groups have 16 or more."""
    layout = replace(LAYOUTS["gptq"], group=8, config=LAYOUTS["gptq"].config | {"group_size": 8})
    model_dir = save_random("llama", tmp_path / "model", tokenizer=True)
    numbers = Path(shutil.copytree(model_dir, tmp_path / "numbers"))
    plain(numbers, rewrite(model_dir, layout))
    with pytest.raises(UsageError, match="int8-b8") as caught:
        export_onnx(model_dir, tmp_path / "onnx", max_model_len=300)
    assert "--dequantize" in caught.value.hint and not (tmp_path / "onnx").exists()
    export_onnx(model_dir, tmp_path / "onnx", max_model_len=300, dequantize=True)
    tokens = random_tokens(40)
    got = plain_logits(tmp_path / "onnx" / PLAIN, tokens)
    assert relative_error(got, judged_logits(judge(numbers), tokens)) <= LIMIT


@pytest.mark.slow
def test_two_exports_are_the_same_bytes(tmp_path: Path) -> None:
    model_dir, first = exported("gemma2", opset=23, max_model_len=300)
    second = tmp_path / "elsewhere" / "onnx"
    export_onnx(model_dir, second, opset=23, max_model_len=300)
    assert contents(second) == contents(first)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_the_config_of_genai_names_what_the_model_has() -> None:
    _, folder = exported("llama", opset=23, max_model_len=300)
    config = json.loads((folder / "genai_config.json").read_text())
    model, decoder = config["model"], config["model"]["decoder"]
    assert (model["vocab_size"], model["context_length"]) == (320, 300)
    assert (model["bos_token_id"], model["eos_token_id"]) == (256, 257)
    assert (decoder["num_key_value_heads"], decoder["head_size"]) == (2, 16)
    names = {each.name for each in session(folder / CACHED).get_inputs()}
    given = decoder["inputs"]
    fixed = {given[name] for name in ("input_ids", "attention_mask", "position_ids")}
    past = {
        given[f"past_{kind}_names"] % layer
        for kind in ("key", "value")
        for layer in range(decoder["num_hidden_layers"])
    }
    assert names == fixed | past
    assert config["search"]["max_length"] == 300
