from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from ingot.artifact.golden import Tolerance
from ingot.artifact.golden_error import GoldenDifference
from ingot.artifact.reader import Artifact
from ingot.compiling import golden_error
from ingot.errors import ArtifactError, VerificationError
from ingot.runtime.llm import LLM
from ingot.runtime.verify import FAULT, OVERFLOW, WAYS, Verification, compile_hint, verify
from tests.runtime.fake_model import golden, write_fake


def found_by(differences: dict[str, GoldenDifference]) -> Verification:
    allowed = Tolerance(0.1, 0.2, 0.5, 0.1)
    return Verification(1, 1, "int8-g128", allowed, differences, (), bitwise_equal=True)


def verified(tmp_path, data: bytes):
    with LLM(write_fake(tmp_path / "a.ingot", files={"golden/golden.json": data})) as llm:
        return verify(llm)


def swapped(gap: float) -> bytes:
    """golden.json whose reference prefers another token at one position, by `gap`."""
    value = json.loads(golden())
    top = value["prompts"][0]["positions"][5]["top"]
    top[0][0], top[1][0] = top[1][0], top[0][0]
    middle = (top[0][1] + top[1][1]) / 2
    top[0][1], top[1][1] = middle + gap / 2, middle - gap / 2
    value["tolerances"]["float32"] |= {"mean": 1.0, "largest": 1.0, "kl": 1.0}
    return json.dumps(value).encode()


def test_an_artifact_that_reproduces_its_goldens_passes(tmp_path):
    result = verified(tmp_path, golden())
    assert result.passed and result.bitwise_equal
    assert set(result.max_errors) == set(WAYS) and result.max_error < 1e-5
    assert (result.num_prompts, result.num_positions, result.mismatches) == (2, 19, ())
    result.raise_if_failed()


def test_an_error_beyond_the_tolerance_fails_and_is_reported(tmp_path):
    result = verified(tmp_path, golden(shift=0.01))
    assert not result.passed and result.max_error == pytest.approx(0.01, abs=1e-5)
    with pytest.raises(VerificationError, match=r"largest error 0\.01, tolerance 0\.0001") as info:
        result.raise_if_failed()
    assert info.value.exit_code == 4
    assert "ingot verify" in info.value.hint


@pytest.mark.parametrize("quantization", ["none", "int8-g128"])
def test_a_compile_that_fails_is_a_fault_of_ingot_in_every_format(tmp_path, quantization):
    files = {"golden/golden.json": golden(shift=0.01)}
    folder = write_fake(tmp_path / "a.ingot", files=files, quantization=quantization)
    with pytest.raises(VerificationError, match=r"largest error 0\.01") as info:
        golden_error(folder)
    assert (info.value.hint, info.value.exit_code) == (FAULT, 4)


def test_the_range_of_float16_is_blamed_for_what_is_not_finite(tmp_path):
    artifact = Artifact.open(write_fake(tmp_path / "a.ingot"))
    half = replace(artifact.manifest.numerics, dtype="float16")
    artifact = replace(artifact, manifest=replace(artifact.manifest, numerics=half))
    for error, hint in ((inf, OVERFLOW), (1.0, FAULT)):
        found = found_by({"prefill": GoldenDifference(error, error, error)})
        assert compile_hint(artifact, found) == hint


def test_an_error_within_the_tolerance_passes(tmp_path):
    assert verified(tmp_path, golden(shift=0.01, tolerance=0.02)).passed


def test_a_near_tie_is_told_from_a_fault(tmp_path):
    near = verified(tmp_path, swapped(0.05))
    assert {(m.prompt, m.position, m.near_tie) for m in near.mismatches} == {(0, 5, True)}
    assert near.mismatches[0].margin == pytest.approx(0.05)
    assert near.passed and len(near.mismatches) == len(WAYS)
    far = verified(tmp_path, swapped(3.0))
    assert not far.passed and len(far.faults) == len(WAYS)
    with pytest.raises(VerificationError, match=r"position 5 .* by a margin of 3"):
        far.raise_if_failed()


def test_a_nan_is_a_failure(tmp_path):
    with LLM(write_fake(tmp_path / "a.ingot")) as llm:
        logits = llm.logits

        def broken(*args, **kwargs):
            result = logits(*args, **kwargs)
            result[0] = float("nan")
            return result

        llm.logits = broken
        assert not verify(llm).passed


def test_ways_that_differ_are_a_failure(tmp_path):
    with LLM(write_fake(tmp_path / "a.ingot")) as llm:
        batch_logits = llm.batch_logits

        def moved(prompts, chunk_tokens, first):
            found = batch_logits(prompts, chunk_tokens=chunk_tokens, first=first)
            if chunk_tokens == 1:
                found[0][-1, 0] += 1e-6
            return found

        llm.batch_logits = moved
        result = verify(llm)
    assert not result.bitwise_equal and not result.passed
    with pytest.raises(VerificationError, match="differ from each other"):
        result.raise_if_failed()


def damaged(change: Callable[[Any], object]) -> bytes:
    """golden.json after a change of what it holds."""
    value = json.loads(golden())
    change(value)
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", golden()[:-1], golden()[: len(golden()) // 2],
        damaged(lambda golden: golden.update(prompts=[])),
        damaged(lambda golden: golden.update(prompts=1)),
        damaged(lambda golden: golden.update(format=3)),
        damaged(lambda golden: golden.update(tolerances={})),
        damaged(lambda golden: golden["model"].update(vocab_size=2)),
        damaged(lambda golden: golden["prompts"][0].update(given=16)),
        damaged(lambda golden: golden["prompts"][0].update(given=0)),
        damaged(lambda golden: golden["prompts"][0]["positions"][3].update(top=[])),
        damaged(lambda golden: [each.update(top=[]) for each in golden["prompts"][0]["positions"]]),
        damaged(lambda golden: golden["prompts"][0]["positions"][0].update(next=None)),
        damaged(lambda golden: golden["prompts"][0]["positions"][0].update(token=320)),
        damaged(lambda golden: golden["prompts"][0]["positions"][0].update(top=[[320, 0.1]])),
        damaged(lambda golden: golden["prompts"][0]["positions"][0].update(more=1)),
    ],
)  # fmt: skip
def test_goldens_that_are_none_are_refused(tmp_path, data):
    with pytest.raises(ArtifactError, match=r"golden\.json"):
        verified(tmp_path, data)


@pytest.mark.parametrize("way", [*WAYS.values()])
@pytest.mark.parametrize("prompt", [0, 1])
@pytest.mark.parametrize("shift", [1.0, 1e-6])
def test_a_failure_of_one_prompt_in_one_way_is_never_forgotten(fake_artifact, way, prompt, shift):
    """All others, before and after it, are as they should be."""

    class OnceWrong:
        def __init__(self, llm):
            self.artifact = llm.artifact
            self._llm, self._first = llm, []

        def logits(self, tokens, first):
            found = self._llm.logits(tokens, first=first)
            self._first.append(tokens)
            return self._spoilt(found) if way is None and len(self._first) == prompt + 1 else found

        def batch_logits(self, prompts, chunk_tokens, first):
            found = self._llm.batch_logits(prompts, chunk_tokens=chunk_tokens, first=first)
            if chunk_tokens == way:
                self._spoilt(found[prompt])
            return found

        def _spoilt(self, found):
            found[2, found[2].argmin()] += 30 * shift
            return found

    with LLM(fake_artifact) as llm:
        assert verify(llm).passed
        found = verify(OnceWrong(llm))
    assert not found.bitwise_equal and not found.passed
    name = next(name for name, chunk in WAYS.items() if chunk == way)
    wrong = [n for n, error in found.max_errors.items() if error > found.tolerance]
    assert wrong == ([name] if shift == 1 else [])
    assert [(m.way, m.prompt) for m in found.mismatches] == ([(name, prompt)] if shift == 1 else [])


def test_logits_are_not_held_longer_than_they_are_compared(fake_artifact):
    """Those of a long prompt and a large vocabulary are gigabytes."""
    made = []

    class Watched:
        def __init__(self, llm):
            self.artifact, self._llm = llm.artifact, llm

        def logits(self, tokens, first):
            return self._llm.logits(tokens, first=first)

        def batch_logits(self, prompts, chunk_tokens, first):
            assert [way for way, logits in made if logits() is not None] == []
            found = self._llm.batch_logits(prompts, chunk_tokens=chunk_tokens, first=first)
            made.extend((chunk_tokens, weakref.ref(logits)) for logits in found)
            return found

    with LLM(fake_artifact) as llm:
        assert verify(Watched(llm)).passed
    assert len({way for way, _ in made}) == 2
