"""Which parts of a text calibrate: how many, how long, from where."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from ingot.compiler.quantization.sequences import calibration_sequences
from ingot.errors import UsageError


@pytest.fixture(scope="module")
def counting() -> Tokenizer:
    """Whose tokens are the numbers that a text counts."""
    tokenizer = Tokenizer(WordLevel({str(i): i for i in range(20_000)}, unk_token="0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return tokenizer


def starts(
    counting: Tokenizer, folder: Path, tokens: int, length: int, space: int = 1
) -> list[int]:
    """Where the sequences begin, all of which are that long and go on without a gap."""
    path = folder / "text"
    path.write_text((" " * space).join(map(str, range(tokens))))
    found = calibration_sequences(path, counting, max_model_len=length)
    assert all(row == list(range(row[0], row[0] + len(row))) for row in found)
    assert {len(row) for row in found} == {min(length, 512)}
    return [row[0] for row in found]


@pytest.mark.parametrize("length", [512, 513, 4096])
def test_the_shortest_text_is_used_whole(length: int, counting: Tokenizer, tmp_path: Path) -> None:
    assert starts(counting, tmp_path, 2048, length) == [0, 512, 1024, 1536]
    assert starts(counting, tmp_path, 2049, length) == [0, 512, 1024, 1537]
    with pytest.raises(UsageError, match="is too short: 2047 tokens") as caught:
        starts(counting, tmp_path, 2047, length)
    assert "at least 2048 tokens" in caught.value.hint and "8192 are used" in caught.value.hint


@pytest.mark.parametrize(
    ("tokens", "length", "count"),
    [(20_000, 512, 16), (8192, 512, 16), (8191, 512, 15), (20_000, 100, 81), (3000, 7, 428)],
)
def test_so_many_sequences_lie_evenly_from_the_first_token_to_the_last(
    tokens: int, length: int, count: int, counting: Tokenizer, tmp_path: Path
) -> None:
    found = starts(counting, tmp_path, tokens, length)
    assert found[0] == 0 and found[-1] == tokens - length and len(found) == count
    steps = {later - earlier for earlier, later in pairwise(found)}
    assert max(steps) - min(steps) <= 1 and min(steps) >= length


def test_a_text_may_have_megabytes(counting: Tokenizer, tmp_path: Path) -> None:
    assert len(starts(counting, tmp_path, 2048, 512, space=600)) == 4
    with (tmp_path / "text").open("wb") as file:
        file.truncate((256 << 20) + 1)
    with pytest.raises(UsageError, match="larger than 268435456"):
        calibration_sequences(tmp_path / "text", counting, max_model_len=512)
