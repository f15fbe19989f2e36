"""What is read to measure quality."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from ingot.compiler.quality_text import TEXTS
from ingot.compiler.quality_texts import WINDOW, given_text, own_texts, pieces_of
from ingot.errors import UsageError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(ROOT / "golden/models/shakespeare/tokenizer.json"))


def positions(pieces) -> int:
    return sum(len(piece.tokens) - 1 for piece in pieces)


def test_every_kind_of_text_has_its_share(tokenizer: Tokenizer) -> None:
    texts = own_texts(tokenizer, [5] * 30)
    assert [*texts] == [*TEXTS, "a conversation"]
    pieces = pieces_of(texts, 640, 4096)
    by_name = {name: positions([p for p in pieces if p.name == name]) for name in texts}
    assert by_name["a conversation"] == 29  # it is short, and the others make up for it
    assert sum(by_name.values()) == 640
    assert max(by_name[name] for name in TEXTS) - min(by_name[name] for name in TEXTS) <= 1


def test_without_a_template_there_is_no_conversation(tokenizer: Tokenizer) -> None:
    assert "a conversation" not in own_texts(tokenizer, [])


@pytest.mark.parametrize("longest", [2, 10, 100, 10**6])
def test_windows_begin_as_the_text_does_and_every_position_counts_once(longest: int) -> None:
    text = [*range(1000)]
    pieces = pieces_of({"a": text}, 700, longest)
    size = min(longest, WINDOW)
    assert all(piece.tokens[0] == 0 and 1 < len(piece.tokens) <= size for piece in pieces)
    assert [token for piece in pieces for token in piece.tokens[1:]] == text[1:701]


def test_a_model_of_single_tokens_reads_nothing() -> None:
    assert pieces_of({"a": [*range(100)]}, 50, 1) == []


def test_only_the_beginning_of_an_enormous_text_is_encoded(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "long.txt"
    path.write_text("What news? " * 100_000)
    ((name, tokens),) = given_text(path, tokenizer, 100).items()
    assert name == "long.txt" and 100 < len(tokens) < 6401


def test_a_text_that_the_tokenizer_splits_into_bytes_is_taken(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "thai.txt"
    path.write_text("ทำไมท้องฟ้าถึงเป็นสีฟ้า")
    ((_, tokens),) = given_text(path, tokenizer, 640).items()
    assert len(tokens) > 40


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "too short: 0 tokens"),
        (b"too few", "too short"),
        (b"\xff\xfe binary", "not UTF-8: byte 0"),
        (None, "cannot read the quality text"),
    ],
)
def test_texts_that_tell_nothing_are_refused(
    tokenizer: Tokenizer, tmp_path: Path, data: bytes | None, message: str
) -> None:
    path = tmp_path / "text.txt"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(UsageError, match=message):
        given_text(path, tokenizer, 640)
    with pytest.raises(UsageError, match="cannot read"):
        given_text(tmp_path, tokenizer, 640)
