"""The curve of quality on the bundled model, with few positions."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch

from bench import curve
from bench.curve_importance import gguf_names, importance, named
from bench.curve_texts import MEASURING, scored, sequences
from ingot.compiler.quantization.sample_text import PARTS
from ingot.compiler.tokenizer import load_tokenizer
from ingot.models.model_dir import ModelDir
from tests.support.gguf_files import write_gguf

MODEL = Path(__file__).resolve().parents[2] / "golden" / "models" / "shakespeare"
FIGURES = {"positions", "kl", "kl_error", "same_top", "perplexity", "base_perplexity"}
POSITIONS = 24


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The bundled model as a GGUF file."""
    return write_gguf(MODEL, tmp_path_factory.mktemp("gguf") / "bundled.gguf")


@pytest.mark.thorough  # it compiles twice
def test_points_are_measured_and_kept(tmp_path, capsys):
    out = tmp_path / "out.json"
    out.write_text(json.dumps({"another": {"points": []}}))
    asked = [str(MODEL), "--json", str(out), "--positions", str(POSITIONS), "--name", "bundled"]
    assert curve.main([*asked, "--points", "int4,int8-g32,Q4_K_M"]) == 0
    models = json.loads(out.read_text())
    assert models["another"] == {"points": []}
    figures = models["bundled"]
    assert figures["positions"] == POSITIONS
    assert figures["measuring"] == ["a play"]
    assert figures["calibrating"]
    fine, coarse = figures["points"]
    assert [fine["name"], coarse["name"]] == ["int8-g32", "int4"]
    assert fine.keys() >= FIGURES | {"runtime", "importance", "bytes", "weight_bytes", "choice"}
    assert fine["positions"] == POSITIONS
    assert 0 < fine["kl"] < coarse["kl"] < 0.1
    assert fine["bytes"] > coarse["bytes"] > coarse["weight_bytes"] > 3e6
    assert fine["base_perplexity"] == coarse["base_perplexity"] != coarse["perplexity"]
    assert "ingot int4" in capsys.readouterr().out


def test_points_of_the_same_text_stay_and_those_of_another_go(tmp_path):
    texts = {"a play": [1, 2, 3]}
    out, one = tmp_path / "out.json", {"runtime": "ingot", "name": "int4", "importance": True}
    other = {**one, "name": "int8"}
    for point, found in ((one, [one]), (other, [one, other]), (one, [other, one])):
        figures = curve.Figures(out, "m")
        figures.begin(SimpleNamespace(texts=texts))
        figures.add(point)
        assert json.loads(out.read_text())["m"]["points"] == found
    figures.begin(SimpleNamespace(texts={"a play": [1, 2]}))
    figures.add(one)
    assert json.loads(out.read_text())["m"]["points"] == [one]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--points", "int3"], "unknown points int3; known: int8-g32"),
        (["--llama", "python"], "--llama needs a GGUF file"),
    ],
)
def test_what_cannot_be_measured_is_said(tmp_path, capsys, options, said):
    with pytest.raises(SystemExit, match="2"):
        curve.main([str(MODEL), "--json", str(tmp_path / "out.json"), *options])
    assert said in capsys.readouterr().err


def test_a_picture_needs_matplotlib_before_anything_is_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "out.json"
    assert curve.main([str(MODEL), "--json", str(out), "--plot", str(tmp_path / "a.png")]) == 2
    assert "pip install 'ingot-lm[chart]'" in capsys.readouterr().err
    assert not out.exists()


def test_no_measuring_text_calibrates():
    tokenizer = load_tokenizer(ModelDir.open(MODEL), None)
    texts = sequences(tokenizer)
    assert [*texts] == [*MEASURING]
    assert scored(texts) >= 1000
    assert scored(sequences(tokenizer, 300)) == 300
    whole = "".join(PARTS)
    for text in MEASURING.values():
        lines = [line for line in text.splitlines() if len(line) > 40]
        assert lines
        assert not any(line in whole for line in lines)


def test_importance_has_a_row_for_each_matrix_of_the_file(file):
    found = importance(file)
    matrices = {t.name: t.shape for t in gguf.GGUFReader(file).tensors if len(t.shape) > 1}
    if "output.weight" in matrices:
        del matrices["token_embd.weight"]  # which is looked up, and not multiplied
    assert {name: (len(row),) for name, row in found.items()} == {
        name: (int(shape[0]),) for name, shape in matrices.items()
    }
    # What reads the same has the same inputs, and other layers have others.
    q, k, later = (found[f"blk.{n}.weight"] for n in ("0.attn_q", "0.attn_k", "1.attn_q"))
    assert (q == k).all()
    assert (q != later).any()
    assert all((row >= 0).all() and np.isfinite(row).all() for row in found.values())


def test_names_of_tensors_are_found_by_those_of_the_checkpoint():
    tensors = ["token_embd.weight", "blk.11.ffn_down.weight", "blk.3.attn_q.weight", "rope.x"]
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.11.mlp.down_proj.weight": "blk.11.ffn_down.weight",
        "model.layers.3.self_attn.q_proj.weight": "blk.3.attn_q.weight",
    }
    assert gguf_names("llama", tensors) == names
    assert gguf_names("gemma3", tensors) == names


def test_a_table_that_is_the_head_has_the_inputs_of_the_head():
    row, tied = torch.ones(2), ["token_embd.weight"]
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        assert list(named({name: row}, "llama", tied)) == ["token_embd.weight"]
    untied = [*tied, "output.weight"]
    assert list(named({"lm_head.weight": row}, "llama", untied)) == ["output.weight"]
    with pytest.raises(ValueError, match=r"no tensor for model\.layers\.0\.mlp\.x\.weight"):
        named({"model.layers.0.mlp.x.weight": row}, "llama", tied)


class Entry(ctypes.Structure):
    """`llama_model_imatrix_data` of llama.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.POINTER(ctypes.c_float)),
        ("size", ctypes.c_size_t),
    )


def test_llama_cpp_gets_an_array_that_a_null_name_ends(monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(llama_model_imatrix_data=Entry))
    from bench.curve_llama import entries

    found = entries({"a.weight": np.array([1.5, 2.5]), "b.weight": np.array([4.0])})
    read = [(found[i].name, found[i].data[: found[i].size]) for i in range(2)]
    assert read == [(b"a.weight", [1.5, 2.5]), (b"b.weight", [4.0])]
    assert found[2].name is None


def test_llama_cpp_runs_in_its_own_environment(tmp_path, monkeypatch):
    bench = curve.Curve.__new__(curve.Curve)
    bench.model, bench.folder = tmp_path / "m.gguf", tmp_path
    bench.texts, bench.bases = {"a play": [3, 4]}, [tmp_path / "0.npy"]
    monkeypatch.setattr("bench.curve_importance.importance", lambda model: {"a": np.ones(2)})
    python = tmp_path / "python"
    answer = json.dumps({"name": "Q4_0", "importance": True})
    python.write_text(f"#!/bin/sh\n[ \"$1$2\" = -mbench.curve_llama ] || exit 9\necho '{answer}'\n")
    python.chmod(0o755)
    (point,) = bench.theirs(python, ["Q8_0", "Q4_0"])
    assert point == {"runtime": "llama.cpp", "name": "Q4_0", "importance": True}
    request = json.loads((tmp_path / "request.json").read_text())
    assert request["points"] == [["Q8_0", False], ["Q4_0", False], ["Q4_0", True]]
    assert request["texts"] == [{"tokens": [3, 4], "base": str(tmp_path / "0.npy")}]
    python.write_text("#!/bin/sh\necho no such type >&2\nexit 3\n")
    with pytest.raises(RuntimeError, match="no such type"):
        list(bench.theirs(python, ["Q4_0"]))
