"""Vectors of texts: what they are made of, that nothing else changes them, and what is refused."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import ingot
from ingot.artifact.golden_rows import RowsError, decode_rows, encode_rows, rows_error, rows_file
from ingot.artifact.reader import Artifact
from ingot.artifact.writer import ArtifactWriter
from ingot.errors import ArtifactError, GoldenError, RequestError, UsageError, VerificationError
from ingot.ops.pool import HOWS, pooled
from ingot.runtime.embedding import PooledRows
from ingot.runtime.llm import LLM
from ingot.runtime.verify import replay
from tests.support.text_models import writer

TEXTS = ["First Citizen:", "Before we proceed any further, hear me speak.\n" * 9, "Speak, speak."]
GREEDY = ingot.SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def artifact() -> Path:
    """A tiny model in float32, with both programs."""
    return writer()


@pytest.fixture(scope="module")
def llm(artifact: Path):
    with LLM(artifact) as llm:
        yield llm


def vectors(llm: LLM, prompts, **options) -> list[list[float]]:
    return [each.outputs.embedding for each in llm.embed(prompts, **options)]


def test_both_programs_read_one_file_of_weights(artifact: Path) -> None:
    opened = Artifact.open(artifact)
    assert opened.names("weights") == ["weights/cpu-float32.safetensors"]
    assert opened.target.programs.keys() == {"step", "hidden"}


def test_vectors_are_of_the_hidden_states_of_transformers(llm: LLM) -> None:
    model_dir = llm.artifact.path.with_name("model")
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    found = llm.embed(TEXTS, pooling="mean", normalize=False)
    for each, last in zip(found, vectors(llm, TEXTS, normalize=False), strict=True):
        with torch.no_grad():
            states = model.model(torch.tensor([each.prompt_token_ids])).last_hidden_state[0]
        assert np.allclose(last, states[-1].numpy(), atol=1e-4)
        assert np.allclose(each.outputs.embedding, states.mean(0).numpy(), atol=1e-4)
    assert [len(each.prompt_token_ids) for each in found] == [
        len(llm.get_tokenizer().encode(text)) for text in TEXTS
    ]


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_normalized_vector_is_1_long_and_points_the_same_way(llm: LLM, pooling: str) -> None:
    for unit, whole in zip(
        vectors(llm, TEXTS, pooling=pooling),
        vectors(llm, TEXTS, pooling=pooling, normalize=False),
        strict=True,
    ):
        length = np.linalg.norm(whole)
        assert np.linalg.norm(unit) == pytest.approx(1, abs=1e-6) and length > 1.5
        assert np.allclose(np.array(unit) * length, whole, atol=1e-5)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_neither_company_nor_requests_nor_what_is_cached_changes_a_bit(
    llm: LLM, pooling: str
) -> None:
    together = vectors(llm, TEXTS, pooling=pooling)
    assert together == [vectors(llm, text, pooling=pooling)[0] for text in TEXTS]
    before = llm.generate(TEXTS, GREEDY)
    texts = [output.outputs[0].text for output in before]
    embedded: list[list[list[float]]] = []
    other = threading.Thread(target=lambda: embedded.append(vectors(llm, TEXTS, pooling=pooling)))
    other.start()
    assert [output.outputs[0].text for output in llm.generate(TEXTS, GREEDY)] == texts
    other.join()
    assert embedded == [together]
    assert [output.outputs[0].text for output in llm.generate(TEXTS, GREEDY)] == texts


@pytest.mark.parametrize("chunk", [1, 5, 48])
def test_chunks_change_no_bit_of_a_mean(llm: LLM, chunk: int) -> None:
    tokens = [llm.get_tokenizer().encode(text) for text in TEXTS]
    pools = [PooledRows(("mean",), len(ids)) for ids in tokens]
    llm.run_pools("hidden", tokens, pools, chunk_tokens=chunk)
    found = [pool.vector(normalize=False).tolist() for pool in pools]
    assert found == vectors(llm, TEXTS, pooling="mean", normalize=False)


@pytest.mark.parametrize("unpooled", [0, 5])
def test_every_way_to_pool_is_that_of_encoders(unpooled: int) -> None:
    rows = np.random.default_rng(0).normal(size=(9, 7)).astype(np.float32)
    pool = PooledRows(HOWS, 9, unpooled)
    for part in (rows[pool.first : 7], rows[7:]):
        pool.take(part)
    wanted = torch.cat([pooled(torch.tensor(rows), how, unpooled) for how in HOWS])
    assert np.allclose(pool.vector(normalize=False), wanted.numpy(), atol=1e-6)
    assert PooledRows(("last",), 9, unpooled).first == 8


def test_more_prompts_than_a_step_has_seats_for(llm: LLM) -> None:
    prompts = [[n % 2048, (7 * n) % 2048] for n in range(150)]
    found = vectors(llm, prompts)
    assert len(found) == 150 and found[131] == vectors(llm, [prompts[131]])[0]
    assert llm.embed([]) == []


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"prompts": "a", "pooling": "min"}, UsageError, "pooling is 'min'"),
        ({"prompts": "a", "pooling": ["last"]}, UsageError, "pooling is"),
        ({"prompts": ["a", []]}, RequestError, "prompt is empty"),
        ({"prompts": [[99999]]}, RequestError, "99999"),
        ({"prompts": [[1] * 5000]}, RequestError, "5000"),
        ({"prompts": 5}, RequestError, "prompts"),
        ({"prompts": "a", "lora_request": "x"}, UsageError, "lora_request"),
    ],
)
def test_what_cannot_be_embedded_is_refused(llm: LLM, given, error, says: str) -> None:
    with pytest.raises(error, match=says):
        llm.embed(**given)
    assert len(vectors(llm, "a")) == 1


def test_an_artifact_without_the_program_says_how_to_get_it(shakespeare_artifact: Path) -> None:
    with LLM(shakespeare_artifact) as plain:
        with pytest.raises(UsageError, match="compiled without the program hidden") as raised:
            plain.embed("a")
        assert "--programs step,hidden" in str(raised.value)
        assert plain.generate("a", GREEDY)[0].outputs[0].token_ids


def test_a_closed_model_is_refused(artifact: Path) -> None:
    other = LLM(artifact)
    other.close()
    with pytest.raises(UsageError, match="closed"):
        other.embed("a")


@pytest.mark.parametrize(
    ("programs", "says"),
    [
        (["hidden"], "the programs hidden"),
        (["encode"], "the programs encode"),
        (["step", "vision"], "step, "),
        (5, "a list"),
    ],
)
def test_programs_that_do_not_exist_are_refused(
    shakespeare_dir: Path, tmp_path: Path, programs, says: str
) -> None:
    with pytest.raises(UsageError, match="programs") as raised:
        ingot.compile(shakespeare_dir, tmp_path / "a.ingot", programs=programs)
    assert says in str(raised.value) and not [*tmp_path.iterdir()]


def changed(artifact: Path, out: Path, name: str, data: bytes) -> Path:
    """The artifact with another file of that name, sealed anew."""
    old = Artifact.open(artifact)
    with ArtifactWriter(out) as writer:
        for each in old.manifest.files:
            writer.write(each, data if each == name else (artifact / each).read_bytes())
        writer.commit(replace(old.manifest, files={}, digest=""))
    return out


def test_golden_rows_are_replayed_and_find_other_rows(artifact: Path, tmp_path: Path) -> None:
    found = replay(Artifact.open(artifact)).programs["hidden"]
    assert found.passed and 0 < found.error <= found.allowed < 1e-5
    golden = decode_rows((artifact / rows_file("hidden")).read_bytes(), "here")
    golden.prompts[2].row[3] += 0.01
    other = changed(artifact, tmp_path / "b.ingot", rows_file("hidden"), encode_rows(golden))
    replayed = replay(Artifact.open(other))
    assert not replayed.passed and not replayed.programs["hidden"].passed
    with pytest.raises(VerificationError, match=r"hidden: relative error 0\.00"):
        replayed.raise_if_failed()


def test_rows_that_are_not_finite_are_infinitely_far_off(artifact: Path) -> None:
    golden = decode_rows((artifact / rows_file("hidden")).read_bytes(), "here")
    rows = [np.array(prompt.row, np.float32) for prompt in golden.prompts]
    assert rows_error(rows, golden).relative < 1e-6
    rows[1][0] = np.nan
    assert rows_error(rows, golden) == RowsError(math.inf, math.inf, -1.0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: b"{",
        lambda value: b"[]",
        lambda value: json.dumps(value | {"format": 9}).encode(),
        lambda value: json.dumps(value | {"prompts": []}).encode(),
        lambda value: json.dumps(value | {"more": 1}).encode(),
        lambda value: json.dumps(value | {"prompts": [{"tokens": [], "row": [1.0]}]}).encode(),
        lambda value: json.dumps(
            value | {"prompts": [*value["prompts"], {"tokens": [1], "row": [1.0]}]}
        ).encode(),
    ],
)
def test_damaged_golden_rows_are_refused(artifact: Path, damage) -> None:
    value = json.loads((artifact / rows_file("hidden")).read_bytes())
    with pytest.raises(GoldenError, match="here"):
        decode_rows(damage(value), "here")


def test_missing_golden_rows_are_refused(artifact: Path, tmp_path: Path) -> None:
    old = Artifact.open(artifact)
    with ArtifactWriter(tmp_path / "b.ingot") as writer:
        for name in old.manifest.files:
            if name != rows_file("hidden"):
                writer.write(name, (artifact / name).read_bytes())
        writer.commit(replace(old.manifest, files={}, digest=""))
    with pytest.raises(ArtifactError, match=r"no golden/hidden\.json"):
        replay(Artifact.open(tmp_path / "b.ingot"))
