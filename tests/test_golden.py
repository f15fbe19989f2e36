"""The bundled model against what `golden/shakespeare/` says of it.

A change that is meant is recorded by `make golden`; its diff is part of the review.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import ingot
from golden.update import FOLDER, FORMATS, GOLDENS, MODEL, PROMPTS, RECORD, structure
from ingot.api import LLM
from ingot.artifact.golden import GoldenPrompt, decode_golden, encode_golden, tolerance_of
from ingot.artifact.reader import Artifact
from ingot.cli.main import main
from ingot.runtime.goldens import check_fit, golden_file, number_format, read_golden
from ingot.runtime.verify import verify
from tests.support.core import core
from tests.support.planted import Planted


def recorded() -> list[GoldenPrompt]:
    return decode_golden(GOLDENS.read_bytes(), "goldens").prompts


@pytest.fixture(scope="module")
def compiled(shakespeare_artifact: Path) -> dict[str, Path]:
    """The artifacts that tests of this file have compiled by the command, by number format."""
    return {"bfloat16": shakespeare_artifact}


def artifact_of(
    name: str, compiled: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An artifact in that number format, compiled by the command."""
    if name not in compiled:
        compiled[name] = tmp_path_factory.mktemp("golden") / f"{name}.ingot"
        command = ["compile", str(MODEL), "-o", str(compiled[name]), *FORMATS[name]]
        assert main(command) == 0
    return compiled[name]


@pytest.mark.parametrize("name", ["ledger.txt", "plan.txt"])
def test_structure_is_as_recorded(shakespeare_artifact: Path, name: str) -> None:
    assert structure(shakespeare_artifact)[name] == (FOLDER / name).read_text()


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("name", core("bfloat16", further=FORMATS))
def test_every_number_format_reproduces_the_goldens(
    name: str,
    compiled: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    artifact = artifact_of(name, compiled, tmp_path_factory)
    capsys.readouterr()
    assert main(["verify", str(artifact), "--golden", str(GOLDENS), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["passed"] and found["number_format"].startswith(name)
    assert found["mean_error"] < 1.2 * found["allowed"]["noise"]
    assert 0 < found["kl"] < found["allowed"]["kl"]


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("name", core("bfloat16", further=FORMATS))
def test_an_error_of_three_times_the_noise_fails(
    name: str, compiled: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """By the goldens in the artifact, and by those of the file, which know other weights."""
    artifact = Artifact.open(artifact_of(name, compiled, tmp_path_factory))
    kept = golden_file(GOLDENS)
    check_fit(kept, GOLDENS, artifact)
    for golden in (read_golden(artifact), kept):
        noise = tolerance_of(golden.tolerances, number_format(artifact), "goldens").noise
        with LLM(artifact) as llm:
            assert verify(Planted(llm, golden, 0.0), golden).passed
            found = verify(Planted(llm, golden, 3 * noise), golden)
        assert found.bitwise_equal and not found.passed
        assert found.mean_error > 1.25 * found.allowed.mean


@pytest.mark.thorough
def test_greedy_generation_gives_the_recorded_tokens(
    compiled: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In float32, where rounding explains no other token."""
    params = ingot.SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    texts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()]
    with ingot.LLM(artifact_of("float32", compiled, tmp_path_factory)) as llm:
        outputs = [result.outputs[0] for result in llm.generate(texts, params)]
    greedy = [prompt for prompt in recorded() if not prompt.sampled]
    assert [prompt.text for prompt in greedy] == texts
    for prompt, output in zip(greedy, outputs, strict=True):
        assert output.token_ids == prompt.tokens[prompt.given :]
        assert output.text == "".join(each.piece for each in prompt.positions[prompt.given :])


def drift(one: list[GoldenPrompt], other: list[GoldenPrompt]) -> float:
    """How far log-probabilities of the same tokens are apart at most; infinite for other tokens."""
    tokens = [[[(p.token, [t for t, _ in p.top]) for p in q.positions] for q in s]
              for s in (one, other)]  # fmt: skip
    if tokens[0] != tokens[1]:
        return math.inf
    values = [[v for q in s for p in q.positions for _, v in p.top] for s in (one, other)]
    return max(abs(a - b) for a, b in zip(*values, strict=True))


@pytest.mark.slow
def test_recording_anew_gives_what_is_recorded(tmp_path: Path) -> None:
    """By the command that recorded it; sums in another order are all that may differ."""
    command = [str(tmp_path / "new.json") if word == str(GOLDENS) else word for word in RECORD]
    assert main(command) == 0
    new, old = golden_file(tmp_path / "new.json"), golden_file(GOLDENS)
    assert drift(new.prompts, old.prompts) <= 2e-5
    assert new.tolerances.keys() == old.tolerances.keys()
    for name, tolerance in new.tolerances.items():
        # Processors differ in the order of sums: the whole noise of float32, and where a rounding
        # to fewer bits is close, which side it falls to.
        assert tolerance.noise == pytest.approx(old.tolerances[name].noise, rel=0.1, abs=1e-6)


def test_a_drift_of_the_recorder_is_seen() -> None:
    """Negative control: a log-probability, and a token, that are others."""
    assert drift(recorded(), recorded()) == 0
    changed = recorded()
    position = changed[0].positions[2]
    token, value = position.top[3]
    position.top[3] = token, value + 1e-4
    assert drift(recorded(), changed) == pytest.approx(1e-4)
    position.token += 1
    assert drift(recorded(), changed) == math.inf


def test_the_recorded_text_reads_like_the_play() -> None:
    texts = ["".join(each.piece for each in prompt.positions) for prompt in recorded()]
    assert all(len(text) > 40 for text in texts)
    assert any(":\n" in text[30:] for text in texts)  # somebody else speaks


def test_the_file_is_as_ingot_writes_it() -> None:
    """A line for every position; a version of the format that changes it shows here."""
    data = GOLDENS.read_bytes()
    assert encode_golden(decode_golden(data, "goldens")) == data
    assert sum(line.lstrip().startswith('{"token"') for line in data.decode().splitlines()) == sum(
        len(prompt.positions) for prompt in recorded()
    )
