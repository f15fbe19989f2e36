"""`ingot embed` and `ingot bench embed`: vectors of the texts in files."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.cli import embed as verb
from ingot.cli.main import main

TEXTS = [f"To be or not to be {i}" for i in range(150)]


@pytest.fixture(scope="module")
def vectors(embedder_artifact: Path) -> Iterator[np.ndarray]:
    with ingot.Embedder(embedder_artifact) as embedder:
        yield embedder.encode(TEXTS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(TEXTS) + "\n")
    return path


def run(*words: object) -> int:
    return main(["embed", *map(str, words)])


def test_an_array_of_all_lines(embedder_artifact: Path, file: Path, vectors: np.ndarray) -> None:
    out = file.with_name("out.npy")
    assert run(embedder_artifact, file, "-o", out) == 0
    assert np.array_equal(np.load(out), vectors)
    assert [path.name for path in sorted(file.parent.iterdir())] == ["out.npy", "texts.txt"]


def test_lines_of_json_on_stdout(
    embedder_artifact: Path,
    vectors: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    given = io.TextIOWrapper(io.BytesIO("\n".join(TEXTS).encode()))
    monkeypatch.setattr(sys, "stdin", given)
    assert run(embedder_artifact, "-") == 0
    lines = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [line["text"] for line in lines] == TEXTS
    found = np.array([line["embedding"] for line in lines], np.float32)
    assert np.array_equal(found, vectors)


def test_a_field_of_json_lines(
    embedder_artifact: Path, tmp_path: Path, vectors: np.ndarray
) -> None:
    given = tmp_path / "in.jsonl"
    given.write_text("\n".join(json.dumps({"body": text}) for text in TEXTS[:3]))
    out = tmp_path / "out.jsonl"
    assert run(embedder_artifact, given, "--field", "body", "-o", out) == 0
    found = [json.loads(line)["embedding"] for line in out.read_text().splitlines()]
    assert np.array_equal(np.array(found, np.float32), vectors[:3])


def test_what_was_interrupted_goes_on(
    embedder_artifact: Path, file: Path, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, usual, seen = file.with_name("out.npy"), verb._vectors, list[int]()

    def breaking(model, texts, wanted, first):
        if first == verb.AT_ONCE and seen == [0]:
            raise KeyboardInterrupt
        seen.append(first)
        return usual(model, texts, wanted, first)

    monkeypatch.setattr(verb, "_vectors", breaking)
    assert run(embedder_artifact, file, "-o", out) == 130
    assert not out.exists() and seen == [0]
    partial = file.with_name("out.npy.partial")
    with partial.open("ab") as half:
        half.write(b"half a vector")
    seen[:] = [-1]
    assert run(embedder_artifact, file, "-o", out) == 0
    assert seen == [-1, verb.AT_ONCE, 2 * verb.AT_ONCE]
    assert np.array_equal(np.load(out), vectors) and not partial.exists()


def test_vectors_of_other_texts_are_not_gone_on_with(
    embedder_artifact: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = file.with_name("out.npy")
    file.with_name("out.npy.partial").write_bytes(b"of another model\n")
    assert run(embedder_artifact, file, "-o", out) == 2
    assert "vectors of other texts" in capsys.readouterr().err
    assert run(embedder_artifact, file, "-o", out, "--force") == 0 and out.exists()
    assert run(embedder_artifact, file, "-o", out) == 2
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"\n \n", "there is no text"),
        ("a.txt", b"\xff", "no text in UTF-8"),
        ("a.jsonl", b"{", "a.jsonl line 1 is no JSON"),
        ("a.jsonl", b'{"other": 1}', "a.jsonl line 1 has no text 'text'"),
        ("a.txt", b"To be " * 100, "of the texts 0 to 0: text 0 has"),
    ],
)
def test_files_without_texts(
    embedder_artifact: Path,
    tmp_path: Path,
    name: str,
    content: bytes,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_bytes(content)
    assert run(embedder_artifact, tmp_path / name, "-o", tmp_path / "out.npy") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.npy").exists()


def test_a_model_that_generates_is_refused(
    shakespeare_artifact: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shakespeare_artifact, file) == 2
    assert "generates text" in capsys.readouterr().err


def test_a_bench_tells_the_share_of_the_limit(
    embedder_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "embed", str(embedder_artifact), "--rounds", "1", "--json"]
    assert main([*words, "--threads", "1"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert [(each["tokens"], each["batch"]) for each in figures] == [
        (16, 1), (16, 64), (64, 1), (64, 64),
    ]  # fmt: skip
    for each in figures:
        assert each["share"] == pytest.approx(each["limit_seconds"] / each["seconds"])
        assert each["texts_per_second"] == pytest.approx(each["batch"] / each["seconds"])


@pytest.mark.parametrize(("verb", "rest"), [("bench", []), ("run", ["hi"])])
def test_other_verbs_say_what_the_model_is_for(
    embedder_artifact: Path, verb: str, rest: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, str(embedder_artifact), *rest]) == 2
    assert "generates none" in capsys.readouterr().err
