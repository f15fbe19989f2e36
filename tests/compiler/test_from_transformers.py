"""`--from transformers`: modules that it wrote give its logits, and what stops one is named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

import ingot
from ingot.compiler.compile import compile_model
from ingot.compiler.export import capture, flatten, repeated
from ingot.compiler.foreign import settle
from ingot.compiler.layers import find_layers
from ingot.compiler.model import read_model
from ingot.compiler.options import Clock, CompileOptions, silent
from ingot.errors import CheckpointError, ConfigError, UnsupportedModelError, UsageError
from ingot.models.foreign import attention
from ingot.models.foreign.build import plain_module
from ingot.models.foreign.config import own_config, parse_foreign, with_floats
from ingot.models.model_dir import ModelDir
from ingot.passes.dump import op_counts
from tests.support.core import core
from tools.classes import AGREES, class_names, judge, random_model, save, tiny_config
from tools.classes_page import PAGE, page, row

torch.set_num_threads(1)

# Each for what no other has: halves, neighbours and parts that turn; norms spelled out, before and
# after; scales, caps, windows in masks; an activation; learned positions; rows without a batch.
AGREEING = (
    "BartForCausalLM",
    "CohereForCausalLM",
    "Gemma2ForCausalLM",
    "GlmForCausalLM",
    "GraniteForCausalLM",
    "ArceeForCausalLM",
    "OPTForCausalLM",
)
OPTIONS = CompileOptions(library="transformers", dtype="float32", max_num_batched_tokens=64)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A tiny random OPT, which no family builds."""
    model, _, _ = random_model(transformers.OPTForCausalLM)
    save(model, tmp_path, "OPTForCausalLM")
    return tmp_path


def change(model_dir: Path, **changes: object) -> None:
    file = model_dir / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def read(model_dir: Path) -> None:
    read_model(ModelDir.open(model_dir), OPTIONS, Clock(silent)).checkpoint.close()


def test_the_page_has_a_row_for_every_class():
    text = PAGE.read_text()
    assert [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")] == (
        class_names()
    )
    assert text.count(f"| {AGREES} |") >= 40
    for vague in ("no tiny model", "fails: ", "ends the process", "takes over", "TORCH_LOGS"):
        assert vague not in text


@pytest.mark.parametrize(
    "name", core("OPTForCausalLM", further=("GlmForCausalLM", "JambaForCausalLM"), slow=AGREEING)
)
def test_rows_of_the_page_are_what_is_found(name):
    assert row(name, judge(name)) in PAGE.read_text().splitlines()


def test_the_page_counts_its_rows():
    text = page({"A": AGREES, "B": "no op stands for a|b"})
    assert "1 of 2 classes agree." in text and "| `B` | no op stands for a/b |" in text


def test_other_logits_are_no_agreement(monkeypatch):
    def halved(*args: object, scaling: float, **kwargs: object) -> object:
        return attention.attend(*args, scaling=scaling / 2, **kwargs)

    register = attention.register

    def registered() -> None:
        register()
        transformers.AttentionInterface.register(attention.NAME, halved)

    monkeypatch.setattr("ingot.models.foreign.build.register", registered)
    assert judge("OPTForCausalLM") == "compiles, and gives other logits"


@pytest.mark.cases(thorough=1)
@pytest.mark.thorough
@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_an_artifact_of_a_class_gives_its_logits(tmp_path, quantize):
    model, prompts, expected = random_model(transformers.OPTForCausalLM)
    save(model, tmp_path / "model", "OPTForCausalLM")
    options = CompileOptions(
        library="transformers", dtype="float32", max_num_batched_tokens=64, quantize=quantize
    )
    report = compile_model(ModelDir.open(tmp_path / "model"), tmp_path / "out", options)
    assert report.manifest.model.architecture == "OPTForCausalLM"
    allowed = 1e-4 if quantize == "none" else 3e-2
    with ingot.LLM(tmp_path / "out") as llm:
        for prompt, logits in zip(prompts, expected, strict=True):
            got = torch.tensor(llm.logits(prompt[0].tolist()))
            assert (got - logits).norm() <= allowed * logits.norm()


def test_layers_that_know_their_place_are_of_one_kind():
    config = tiny_config(transformers.LlamaForCausalLM)
    config.num_hidden_layers = 5
    module, _ = plain_module(transformers.LlamaForCausalLM, config, max_model_len=64)
    assert find_layers(module).chosen == (0, 1)
    graph = repeated(module)
    assert op_counts(graph)["aten.linear"] == 5 * 7 + 1
    module.model.layers[3].self_attn.scaling *= 2
    assert find_layers(module).chosen == (0, 1, 3)


@pytest.mark.parametrize(
    "changes, error, words",
    [
        ({"architectures": ["NoSuchForCausalLM"]}, UnsupportedModelError, "no model class NoSuch"),
        (
            {"architectures": ["MyForCausalLM"], "auto_map": {"AutoModel": "my.MyModel"}},
            UnsupportedModelError,
            "code of its own",
        ),
        ({"architectures": ["ElectraModel"]}, CheckpointError, "lacks embeddings.LayerNorm.bias"),
        ({"architectures": []}, ConfigError, "architectures = "),
        ({"hidden_size": "wide"}, ConfigError, "refuses config.json"),
        ({"num_hidden_layers": 3}, CheckpointError, "lacks model.decoder.layers.2"),
        ({"num_hidden_layers": 1}, CheckpointError, "has tensors that the model does not use"),
        ({"ffn_dim": 64}, CheckpointError, "of another shape"),
    ],
)
def test_what_does_not_fit_is_named(model_dir, changes, error, words):
    change(model_dir, **changes)
    with pytest.raises(error, match=words):
        read(model_dir)


def test_models_of_whole_texts_may_be_taken(model_dir):
    change(model_dir, architectures=["AlbertModel"])
    with pytest.raises(UnsupportedModelError, match="no family builds") as caught:
        read_model(ModelDir.open(model_dir), CompileOptions(), Clock(silent))
    assert "--from transformers may take it" in caught.value.hint


def test_a_missing_package_names_the_extra(model_dir, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match=r"transformers is not installed\n.*\[hf\]"):
        read(model_dir)


def test_a_model_without_a_family_is_told_of_the_way(model_dir):
    with pytest.raises(UnsupportedModelError, match="--from transformers"):
        read_model(ModelDir.open(model_dir), CompileOptions(), Clock(silent))


@pytest.mark.parametrize(
    "name", core("CamembertForCausalLM", further=("Gemma3nForCausalLM",), slow=())
)
def test_the_library_reads_what_it_wrote(tmp_path, name):
    """A head that has the first name of a tied tensor; a buffer of a model within the model."""
    model, _, _ = random_model(getattr(transformers, name))
    save(model, tmp_path, name)
    read(tmp_path)


@pytest.mark.parametrize("number", ["Infinity", "-Infinity"])
def test_floats_that_json_has_no_number_for_are_read(number):
    values = {"time_step_limit": [0.0, {"__float__": number}]}
    assert own_config(transformers.BambaForCausalLM, values).time_step_limit == (0.0, float(number))
    assert with_floats({"a": [{"__float__": "one"}, {"__float__": 1}]}) == {
        "a": [{"__float__": "one"}, {"__float__": 1}]
    }


def test_a_model_of_several_stacks_has_a_config():
    values = {**transformers.BltConfig().to_dict(), "architectures": ["BltForCausalLM"]}
    assert parse_foreign(values).num_layers == 0


class SizeOfValues(nn.Module):
    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return positions[..., None] + torch.ones(input_ids[0, 0].item()).sum()


def test_sizes_that_values_decide_are_refused():
    module = SizeOfValues()
    with pytest.raises(UnsupportedModelError, match=r"aten\.item, whose result has a size"):
        settle(flatten(capture(module)), module)


def sees(window: int, future: int = 0) -> object:
    return lambda batch, head, query, key: (key <= query + future) & (key > query - window)


@pytest.mark.parametrize(
    "mask, window",
    [
        (lambda batch, head, query, key: key <= query, 0),
        (sees(1), 1),
        (sees(4096), 4096),
        (sees(7, future=1), None),
        (lambda batch, head, query, key: (key <= query) & (key // 8 == query // 8), None),
        (lambda batch, head, query, key: torch.ones(1, device="meta")[key] > 0, None),
    ],
)
def test_masks_say_their_window(mask, window):
    found, causal = attention.window_of(mask)
    assert found == window and (causal or found is None)


@pytest.mark.parametrize("name", core("MixtralForCausalLM", further=(), slow=("MambaForCausalLM",)))
def test_what_stops_a_class_is_one_line_that_names_a_place(name):
    verdict = judge(name)
    assert verdict != AGREES and "\n" not in verdict and len(verdict) > 20
