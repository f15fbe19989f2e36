"""The World vocabulary: its lines, and the tokenizer that is made of them."""

from __future__ import annotations

import json
import random

import pytest

from ingot.errors import TokenizerError
from ingot.models.world.vocabulary import END, ROWS, shipped, tokenizer_json, tokens_of
from ingot.runtime.tokenizer import Tokenizer
from tests.support.rwkv_models import vocabulary

WORDS = [b"ab", b"abc", b"abcd", "ä".encode(), "äb".encode(), b"  ", b"    ", b"\r\n", b"cda"]
TEXTS = ["", "abcdabab", "abcda", "äbä", "漢🎉x", "     a\r\n", "\0\x01", "abxabcxabcdx"]


def longest(tokens: list[bytes], text: str) -> list[int]:
    """The definition: at each place the longest token that the text goes on with."""
    data, found = text.encode(), []
    while data:
        token = max((t for t in tokens if data.startswith(t)), key=len)
        found.append(tokens.index(token) + 1)
        data = data[len(token) :]
    return found


# Of a text in the vocabulary that is shipped, by the package `rwkv` 0.8.32.
TEXT = "User: Hello, 世界! 🎉\n\nAssistant:"
IDS = [24281, 59, 36786, 45, 33, 10267, 14610, 34, 33, 3319, 143, 138, 261, 5585, 41693, 59]


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return Tokenizer(tokenizer_json(vocabulary(WORDS), "here"))


@pytest.mark.parametrize("text", TEXTS)
def test_the_longest_token_is_taken_at_each_place(text: str, small: Tokenizer) -> None:
    ids = small.encode(text)
    assert ids == longest(tokens_of(vocabulary(WORDS), "here"), text)
    assert small.decode(ids) == text


def test_the_library_reads_the_same_file_the_same_way(small: Tokenizer) -> None:
    rng = random.Random(0)
    for _ in range(200):
        text = "".join(rng.choices("abcdä \r\n漢", k=rng.randrange(30)))
        assert small.encode(text) == small.backend.encode(text).ids


def test_the_token_that_ends_a_text_has_no_bytes(small: Tokenizer) -> None:
    assert small.encode(f"ab{END}b") == [*small.encode("ab"), 0, *small.encode("b")]
    assert small.decode([0, *small.encode("ab")]) == "ab" and small.is_special(0)
    assert small.decode([0], skip_special_tokens=False) == END


def test_special_tokens_are_text_where_the_config_says_so() -> None:
    plain = Tokenizer(tokenizer_json(vocabulary(WORDS), "here"), {"split_special_tokens": True})
    assert 0 not in plain.encode(END) and plain.decode(plain.encode(END)) == END


def test_streams_hold_the_bytes_of_a_character_until_it_is_whole(small: Tokenizer) -> None:
    ids, stream = [byte + 1 for byte in "漢a🎉".encode()], small.detokenizer()
    assert [stream.push(i) for i in ids] == ["", "", "漢", "a", "", "", "", "🎉"]
    assert stream.push(0xE6 + 1) == "" and stream.finish() == "\ufffd"


def line(number: int, token: object, length: int) -> bytes:
    return f"{number} {token!r} {length}\n".encode()


BYTES = vocabulary([])
WRONG = {
    "a hole": (BYTES + line(258, "ab", 2), "has id 258 where 257 should be"),
    "an id twice": (BYTES + line(256, "ab", 2), "has id 256 where 257 should be"),
    "a token twice": (
        BYTES + line(257, "ab", 2) + line(258, b"ab", 2),
        "has the token b'ab' twice",
    ),
    "no bytes": (line(1, "ab", 2), "does not begin with the 256 single bytes"),
    "a wrong length": (BYTES + line(257, "ä", 1), "which is no token"),
    "an empty token": (BYTES + line(257, "", 0), "which is no token"),
    "a number": (BYTES + b"257 12 2\n", "which is no token"),
    "code": (BYTES + b"257 __import__('os').getcwd() 2\n", "which is no token"),
    "no id": (BYTES + b"x 'ab' 2\n", "which is no token"),
    "no text": (BYTES[:-1] + b"\xff", "is no UTF-8"),
    "nothing": (b"", "which is no token"),
}


@pytest.mark.parametrize("case", WRONG)
def test_other_lines_are_refused(case: str) -> None:
    data, said = WRONG[case]
    with pytest.raises(TokenizerError, match=said):
        tokens_of(data, "here")


def test_lines_may_end_as_on_windows() -> None:
    data = vocabulary(WORDS)
    assert tokens_of(data.replace(b"\n", b"\r\n"), "here") == tokens_of(data, "here")


def test_the_vocabulary_that_is_shipped_is_the_published_one() -> None:
    tokens = tokens_of(shipped(), "here")
    assert len(tokens) == 65529 < ROWS and max(map(len, tokens)) == 128
    world = Tokenizer(tokenizer_json(shipped(), "here"), vocab_size=ROWS)
    assert world.encode(TEXT) == IDS and world.decode(IDS) == TEXT
    assert world.encode(" " * 1000) == [65529] * 7 + [65524, 65450]


def test_the_file_is_the_library_s_own(small: Tokenizer) -> None:
    file = json.loads(small.backend.to_str())
    assert file["model"]["type"] == "WordPiece" and file["model"]["vocab"][END] == 0
