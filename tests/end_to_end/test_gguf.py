"""From a GGUF file to tokens: the artifact of the original model, and those of quantized files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

import ingot
from ingot.artifact.matrices import matrices_of
from ingot.artifact.reader import Artifact
from ingot.cli.compile import summary
from ingot.cli.main import main
from ingot.compiler.explain import explain
from ingot.models.gguf.types import BY_NAME
from tests.conftest import SHAKESPEARE
from tests.end_to_end.support import random_tokens, relative_error
from tests.support.checkpoints import plain_logits
from tests.support.core import core
from tests.support.gguf_files import Type, write_gguf
from tests.support.tiny_models import save_random

PROMPT = "ROMEO:"


def tokens(path: Path | str, count: int = 24) -> list[int]:
    params = ingot.SamplingParams(max_tokens=count, temperature=0)
    with ingot.LLM(path) as llm:
        return list(llm.generate(PROMPT, params)[0].outputs[0].token_ids)


@pytest.mark.thorough
def test_the_artifact_is_that_of_the_original(
    shakespeare_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(SHAKESPEARE, tmp_path / "romeo.gguf", Type.BF16)
    ingot.compile(path, tmp_path / "romeo.ingot")
    found, expected = Artifact.open(tmp_path / "romeo.ingot"), Artifact.open(shakespeare_artifact)
    for name in (*expected.names("weights"), *expected.names("targets")):
        assert found.read(name) == expected.read(name), name
    assert found.manifest.model.name == "romeo"
    assert tokens(tmp_path / "romeo.ingot") == tokens(shakespeare_artifact)
    assert main(["run", str(path), PROMPT, "--max-tokens", "8", "--temperature", "0"]) == 0
    told = capsys.readouterr()
    assert "compiling" in told.err and told.out.strip()
    assert main(["run", str(path), PROMPT, "--max-tokens", "8", "--temperature", "0"]) == 0
    again = capsys.readouterr()
    assert again.out == told.out and "compiling" not in again.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mixtral", "qwen3moe", "deepseek_v2_experts", "gptoss", "qwen35moe"]
)
def test_experts_say_what_those_of_the_original_do(name: str, tmp_path: Path) -> None:
    """Bit for bit: from the file, as from the directory that it was made from."""
    model_dir = save_random(name, tmp_path / "model", "bfloat16", tokenizer=True)
    path = write_gguf(model_dir, tmp_path / "model.gguf", Type.BF16)
    said = []
    for source in (model_dir, path):
        out = tmp_path / f"{source.suffix}.ingot"
        ingot.compile(source, out, max_model_len=128)
        with ingot.LLM(out) as llm:
            said.append([llm.logits(random_tokens(length)) for length in (1, 17, 100)])
    for one, other in zip(*said, strict=True):
        assert one.tobytes() == other.tobytes()
        assert one.std() > 0.1


def but_routers(name: str) -> Type:
    """As llama.cpp quantizes: all matrices but those that pick experts."""
    return Type.F32 if "gate_inp" in name else Type.Q8_0


def as_gpt_oss(name: str) -> Type:
    """As it is published: experts in mxfp4."""
    return Type.MXFP4 if "_exps" in name else Type.BF16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kinds", "label"),
    [
        ("qwen3moe_unnormalised", but_routers, "Q8_0"),
        ("gptoss_layer_types", as_gpt_oss, "MXFP4"),
    ],
)
def test_blocks_of_experts_are_kept(
    name: str, kinds: Callable[[str], Type], label: str, tmp_path: Path
) -> None:
    model_dir = save_random(name, tmp_path / "model", "bfloat16", tokenizer=True)
    path = write_gguf(model_dir, tmp_path / "model.gguf", kinds)
    report = ingot.compile(path, tmp_path / "a.ingot", max_model_len=128)
    assert any(
        f"gguf {label}, kept as int8-g32" in text and "gate_up_proj" in text for text in report.kept
    )
    with ingot.LLM(report.artifact) as llm:
        for length in (1, 17, 100):
            ids = random_tokens(length)
            assert relative_error(llm.logits(ids), plain_logits(path, ids)) <= 0.03


def kinds(name: str) -> Type:
    """As llama.cpp mixes them: finer where it matters more."""
    return {"token_embd.weight": Type.Q6_K, "blk.0.attn_v.weight": Type.Q8_0}.get(name, Type.Q4_0)


@pytest.mark.slow
def test_what_becomes_of_what_is_told_and_done(shakespeare_artifact: Path, tmp_path: Path) -> None:
    path = write_gguf(SHAKESPEARE, tmp_path / "mixed.gguf", kinds)
    report = ingot.compile(path, tmp_path / "mixed.ingot")
    text = summary(report)
    assert "41 matrices in gguf Q4_0, kept as int4-b32: " in text
    assert "1 matrices in gguf Q8_0, kept as int8-g32: v_proj" in text
    assert "1 matrices in gguf Q6_K, kept as int6-g16-m8: embed_tokens" in text
    plan = Artifact.open(report.artifact).plan
    stored = {each.name: each.stored for each in matrices_of(plan)}
    assert stored["model.layers.*.self_attn.q_k_proj"] == "int4, 8 groups of 32"
    told = explain(path)
    assert told.supported and any("gguf Q6_K, kept as int6-g16-m8" in f for f in told.features)
    assert tokens(tmp_path / "mixed.ingot", 3) == tokens(shakespeare_artifact, 3)


def test_a_mixture_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_gguf(SHAKESPEARE, tmp_path / "mixed.gguf", kinds)
    assert main(["explain", str(path)]) == 0
    told = capsys.readouterr().out
    for name, stored in (
        ("embed_tokens", "int6, 16 groups of 16"),
        (r"self_attn\.v_proj", "int8, 8 groups of 32"),
        (r"self_attn\.q_k_v_proj \(6\)", "-  "),
    ):
        assert re.search(rf"{name} .*{stored}", told), name


LARGER = {"Q2_K": 1.95, "Q3_K": 1.36}  # their integers are stored in 4 bits


@pytest.mark.parametrize(
    "kind",
    core(
        "Q4_K",
        further=["Q4_1", "Q6_K", "IQ4_XS"],
        slow=["Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q5_K", "IQ4_NL"],
    ),
)
def test_every_type_is_kept_at_its_own_size(kind: str, tmp_path: Path) -> None:
    """And logits are those of its numbers, but for the rounding of activations."""
    path = write_gguf(SHAKESPEARE, tmp_path / "a.gguf", Type[kind])
    report = ingot.compile(path, tmp_path / "a.ingot", max_model_len=128, dtype="float32")
    assert report.kept == (f"43 matrices in gguf {kind}, kept as {label_of(kind)}: {EVERY}",)
    artifact = Artifact.open(report.artifact)
    (weights,) = artifact.names("weights")
    assert len(artifact.read(weights)) <= LARGER.get(kind, 1.03) * path.stat().st_size
    with ingot.LLM(report.artifact) as llm:
        for length in (1, 17, 100):
            ids = random_tokens(length)
            assert relative_error(llm.logits(ids), plain_logits(path, ids)) <= 0.04


EVERY = "embed_tokens, q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"


def label_of(kind: str) -> str:
    storage = BY_NAME[kind].storage
    assert storage is not None
    return storage.label


@pytest.mark.slow
def test_numbers_are_taken_on_request(shakespeare_artifact: Path, tmp_path: Path) -> None:
    path = write_gguf(SHAKESPEARE, tmp_path / "six.gguf", Type.Q6_K)
    report = ingot.compile(path, tmp_path / "six.ingot", dequantize=True)
    assert "43 matrices in gguf Q6_K, dequantized" in summary(report)
    assert report.manifest.numerics.quantization == "none"
    assert tokens(tmp_path / "six.ingot", 4) == tokens(shakespeare_artifact, 4)


def test_every_verb_names_what_is_wrong(tmp_path: Path, capsys) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(str(path), "moon")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    for verb in ("compile", "explain", "run"):
        arguments = [verb, str(path), *(["hello"] if verb == "run" else [])]
        assert main(arguments) == 2
        told = capsys.readouterr()
        assert "general.architecture = 'moon'" in told.err + told.out
        assert "supported GGUF files: llama, " in told.err + told.out
    assert [p.name for p in tmp_path.iterdir()] == ["x.gguf"]


@pytest.mark.parametrize("verb", ["compile", "explain", "run"])
@pytest.mark.parametrize("in_folder", [False, True])
def test_every_verb_names_what_is_damaged(verb, in_folder, tmp_path: Path, capsys) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF\3\0\0\0")
    path = tmp_path if in_folder else tmp_path / "x.gguf"
    assert main([verb, str(path), *(["hello"] if verb == "run" else [])]) == 2
    told = capsys.readouterr()
    assert f"{tmp_path}/x.gguf is truncated" in told.err + told.out
    assert "fetch it again" in told.err + told.out


def test_a_folder_with_one_file_is_that_file(tmp_path: Path, capsys) -> None:
    write_gguf(SHAKESPEARE, tmp_path / "a.gguf", Type.Q8_0)
    (tmp_path / "mmproj-a.gguf").write_bytes(b"")
    assert main(["explain", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["supported"] is True
    (tmp_path / "b.gguf").write_bytes(b"")
    assert main(["explain", str(tmp_path)]) == 2
    assert f"{tmp_path} has several GGUF models: a.gguf, b.gguf" in capsys.readouterr().err
