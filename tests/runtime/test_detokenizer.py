from __future__ import annotations

import random

import pytest

from ingot.runtime.tokenizer import Tokenizer
from tests.runtime import fake_tokenizer

KINDS = ["byte_level", "byte_fallback", "metaspace", "wordpiece"]
TEXTS = [
    "the quick brown fox, héllo wörld",
    "🙂🙃 你好 世界 ẃ",
    " Hello  world !",
    "👩‍👩‍👧‍👦 family, e\u0301 combining",
    "\ufffd a real one \ufffd",
]


def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer(getattr(fake_tokenizer, kind)().to_str().encode())


def stream(tokenizer: Tokenizer, ids: list[int], skip: bool = True) -> list[str]:
    detokenizer = tokenizer.detokenizer(skip)
    return [*(detokenizer.push(token) for token in ids), detokenizer.finish()]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_pieces_of_random_tokens_are_the_full_decode(kind, skip):
    tokenizer = tokenizer_of(kind)
    size = tokenizer.backend.get_vocab_size()
    rng = random.Random(f"{kind}{skip}")
    for _ in range(600):
        few = rng.sample(range(size), min(size, rng.choice([2, 5, size])))
        ids = [rng.choice(few) for _ in range(rng.randrange(1, 30))]
        pieces = stream(tokenizer, ids, skip)
        assert "".join(pieces) == tokenizer.decode(ids, skip), ids


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_real_text_comes_in_whole_characters_at_every_split(kind):
    tokenizer = tokenizer_of(kind)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        full = tokenizer.decode(ids)
        for start in range(len(ids)):
            tail = ids[start:]
            pieces = stream(tokenizer, tail)
            assert "".join(pieces) == tokenizer.decode(tail)
            if start == 0:
                so_far = ""
                for piece in pieces:
                    so_far += piece
                    assert full.startswith(so_far)


def test_ordinary_text_is_not_held_back():
    tokenizer = tokenizer_of("byte_level")
    ids = tokenizer.encode("the lazy dog", add_special_tokens=False)
    pieces = stream(tokenizer, ids)
    assert all(pieces[:-1]) and pieces[-1] == ""


def test_an_unfinished_character_comes_only_at_the_end():
    tokenizer = tokenizer_of("byte_level")
    ids = tokenizer.encode("a🙂", add_special_tokens=False)[:-1]
    pieces = stream(tokenizer, ids)
    assert "\ufffd" not in "".join(pieces[:-1])
    assert "".join(pieces) == tokenizer.decode(ids)


def test_a_naive_detokenizer_would_fail_here():
    """The negative control: decoding token by token is not the full decode."""
    tokenizer = tokenizer_of("byte_level")
    ids = tokenizer.encode("🙂", add_special_tokens=False)
    assert "".join(tokenizer.decode([i]) for i in ids) != tokenizer.decode(ids)
