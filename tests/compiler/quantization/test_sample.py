"""The bundled text: which tokens of it calibrate, whatever the tokenizer and the model are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from ingot.compiler.golden_text import TEXT
from ingot.compiler.quality_text import ANSWER, QUESTION, TEXTS
from ingot.compiler.quantization.calibrate import mean_squares
from ingot.compiler.quantization.sample_text import PARTS
from ingot.compiler.quantization.sequences import SAMPLE_TOKENS, sample_sequences

torch.set_num_threads(1)

ROOT = Path(__file__).parents[3]


def words(*known: str, with_bos: bool = False, unknown: str | None = "<unk>") -> Tokenizer:
    """A tokenizer of words: those, `<s>` and, where it can say so, anything else."""
    names = ["<s>", *([unknown] if unknown else []), *known]
    vocabulary = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=unknown or "<missing>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    if with_bos:
        tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def test_the_text_is_long_and_shares_nothing_with_those_that_measure() -> None:
    whole = "".join(PARTS)
    assert 16_000 <= len(whole.encode()) <= 24_000
    for other in (TEXT, QUESTION, ANSWER, *TEXTS.values()):
        for start in range(len(other) - 40):
            assert other[start : start + 40] not in whole, other[start : start + 40]


def test_a_bundled_tokenizer_gives_sequences_of_512_tokens() -> None:
    tokenizer = Tokenizer.from_file(str(ROOT / "golden/models/shakespeare/tokenizer.json"))
    found = sample_sequences(tokenizer, tokenizer.get_vocab_size(), max_model_len=1024)
    assert [len(row) for row in found] == [512] * (SAMPLE_TOKENS // 512)
    begin = [row[0] for row in found]
    assert len(set(map(tuple, found))) == len(found) and len(begin) == len(found)


def test_each_begins_as_the_tokenizer_begins_a_text() -> None:
    for length in (512, 20, 2):
        found = sample_sequences(words(with_bos=True), 9, max_model_len=length)
        assert all(row[0] == 0 and 0 not in row[1:] for row in found)
        assert {len(row) for row in found} == {min(length, 512)}
    without = sample_sequences(words(), 9, max_model_len=512)
    assert all(0 not in row for row in without)


def test_a_model_of_a_single_token_gets_no_bos() -> None:
    found = sample_sequences(words(with_bos=True), 9, max_model_len=1)
    assert {len(row) for row in found} == {1} and len(found) <= SAMPLE_TOKENS


@pytest.mark.parametrize("unknown", ["<unk>", None])
def test_tokens_that_there_are_not_are_left_out(unknown: str | None) -> None:
    """What cannot be encoded, and what the model has no row for."""
    tokenizer = words("The", "the", unknown=unknown)
    found = sample_sequences(tokenizer, tokenizer.token_to_id("The"), max_model_len=512)
    assert all(token < tokenizer.token_to_id("The") for row in found for token in row)
    assert bool(found) == (unknown is not None)


def test_few_tokens_are_one_short_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingot.compiler.quantization.sequences.PARTS", ("a b c",))
    assert sample_sequences(words("a", "b"), 9, max_model_len=512) == [[2, 3, 1]]
    assert sample_sequences(words("a", "b", with_bos=True), 9, max_model_len=3) == [[0, 2, 3]]
    monkeypatch.setattr("ingot.compiler.quantization.sequences.PARTS", ("",))
    assert sample_sequences(words("a", "b"), 9, max_model_len=512) == []


def overflowing(x: torch.Tensor) -> torch.Tensor:
    return x * float("inf")


@pytest.mark.parametrize("change", [torch.zeros_like, overflowing])
def test_activations_that_tell_nothing_are_no_importance(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    assert mean_squares(change(torch.ones(3, 4))) is None
    assert mean_squares(torch.empty(0, 4)) is None
    assert torch.equal(mean_squares(torch.full((3, 4), 2.0)), torch.full((4,), 4.0))
