from __future__ import annotations

import random
from collections.abc import Sequence

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


def stream(
    tokenizer: Tokenizer,
    ids: list[int],
    skip: bool = True,
    spaces: bool = True,
    prompt: Sequence[int] = (),
    cut: bool = False,
) -> list[str]:
    detokenizer = tokenizer.detokenizer(skip, spaces, prompt)
    return [*(detokenizer.push(token) for token in ids), detokenizer.finish(cut=cut)]


def random_ids(tokenizer: Tokenizer, rng: random.Random) -> list[int]:
    size = tokenizer.backend.get_vocab_size()
    few = rng.sample(range(size), min(size, rng.choice([2, 5, size])))
    return [rng.choice(few) for _ in range(rng.randrange(1, 30))]


def continuation(tokenizer: Tokenizer, prompt: list[int], ids: list[int], skip: bool) -> str:
    """What tokens add to the text of a prompt; a character that they complete is theirs."""
    text = tokenizer.decode(prompt + ids, skip)
    is_open = tokenizer.decode(prompt, skip).endswith("\ufffd")
    for dropped in range(min(3, len(prompt)) + 1 if is_open else 1):
        before = tokenizer.decode(prompt[: len(prompt) - dropped], skip)
        if text.startswith(before):
            return text[len(before) :]
    return tokenizer.decode(ids, skip)


@pytest.mark.cases(core=3)
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_pieces_of_random_tokens_are_the_full_decode(kind, skip):
    tokenizer = tokenizer_of(kind)
    rng = random.Random(f"{kind}{skip}")
    for _ in range(1250):
        ids = random_ids(tokenizer, rng)
        spaces = rng.random() < 0.5
        pieces = stream(tokenizer, ids, skip, spaces)
        assert "".join(pieces) == tokenizer.decode(ids, skip, spaces), ids


@pytest.mark.cases(core=3)
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_after_a_prompt_the_pieces_are_what_the_tokens_add_to_its_text(kind, skip):
    """Prompts end anywhere, within characters, too."""
    tokenizer = tokenizer_of(kind)
    rng = random.Random(f"{kind}{skip} prompt")
    for _ in range(1250):
        ids = random_ids(tokenizer, rng)
        cut = rng.randrange(len(ids))
        prompt = [i for i in ids[:cut] if tokenizer.decode([i], skip)][-6:]
        pieces = stream(tokenizer, ids[cut:], skip, prompt=prompt)
        assert "".join(pieces) == continuation(tokenizer, prompt, ids[cut:], skip), (prompt, ids)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_no_text_of_the_prompt_leaks_and_spaces_stay(kind):
    tokenizer = tokenizer_of(kind)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        full = tokenizer.decode(ids)
        for cut in range(1, len(ids)):
            text = "".join(stream(tokenizer, ids[cut:], prompt=ids[:cut]))
            begun = 0  # tokens of a character that the prompt has left open: it comes whole
            while not full.startswith(tokenizer.decode(ids[: cut - begun])):
                begun += 1
            assert begun < 4
            assert tokenizer.decode(ids[: cut - begun]) + text == full


def test_a_leading_space_is_lost_without_the_prompt():
    """The negative control of the test above."""
    tokenizer = tokenizer_of("byte_fallback")
    ids = [tokenizer.backend.token_to_id(piece) for piece in ("▁Hello", "▁world")]
    assert "".join(stream(tokenizer, ids[1:])) == "world"
    assert "".join(stream(tokenizer, ids[1:], prompt=ids[:1])) == " world"


def test_spaces_between_special_tokens_can_be_left_out():
    tokenizer = tokenizer_of("wordpiece")
    ids = [1, 2, 1, 1, 3, 1, 0, 1, 3]
    assert tokenizer.decode(ids, False) == "[SEP] the [SEP] [SEP] dog [SEP] [UNK] [SEP] dog"
    assert tokenizer.decode(ids, False, False) == "[SEP] the [SEP][SEP] dog [SEP][UNK][SEP] dog"
    assert tokenizer.decode(ids, True, False) == tokenizer.decode(ids, True) == "the dog dog"
    assert "".join(stream(tokenizer, ids, False, False)) == tokenizer.decode(ids, False, False)


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


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_a_text_that_is_cut_off_ends_with_a_whole_character(kind):
    tokenizer = tokenizer_of(kind)
    differ = 0
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        full, ends = tokenizer.decode(ids), [""]
        for end in range(1, len(ids) + 1):
            ends.append("".join(stream(tokenizer, ids[:end], cut=True)))
            assert full.startswith(ends[-1])
            assert len(ends) < 6 or ends[-1] != ends[-6], "four bytes, and a space before them"
            differ += ends[-1] != "".join(stream(tokenizer, ids[:end]))
        assert ends[-1] == full
    assert differ > 10


@pytest.mark.parametrize(
    ("kind", "spellings", "whole", "cut"),
    [
        ("byte_level", ["a", "ð", "Ł"], "a\ufffd", "a"),  # F0 9F
        ("byte_level", ["a", "Ł"], "a\ufffd", "a\ufffd"),  # 9F begins no character
        ("byte_level", ["a", "ï", "¿", "½"], "a\ufffd", "a\ufffd"),  # U+FFFD itself
        ("byte_fallback", ["<0xE4>", "<0xB8>", "<0xAD>", "<0xE4>"], "\ufffd" * 4, "中"),
        ("byte_fallback", ["<0xAD>", "<0xE4>"], "\ufffd" * 2, "\ufffd"),
    ],
)
def test_what_no_byte_can_complete_is_not_cut_off(kind, spellings, whole, cut):
    tokenizer = tokenizer_of(kind)
    ids = [tokenizer.backend.token_to_id(spelling) for spelling in spellings]
    assert "".join(stream(tokenizer, ids)) == whole
    assert "".join(stream(tokenizer, ids, cut=True)) == cut


@pytest.mark.parametrize(
    ("kind", "spellings"),
    [
        ("byte_level", ["a", "ð", "Ł", "Ļ", "Ģ"]),
        ("byte_fallback", ["<0x61>", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>"]),
    ],
)
def test_a_character_that_began_in_the_prompt_is_cut_off(kind, spellings):
    tokenizer = tokenizer_of(kind)
    ids = [tokenizer.backend.token_to_id(spelling) for spelling in spellings]
    for begun in range(1, 5):
        prompt = ids[:begun]
        assert "".join(stream(tokenizer, ids[begun:-1], prompt=prompt, cut=True)) == ""
        whole = "".join(stream(tokenizer, ids[begun:], prompt=prompt, cut=True))
        assert whole == tokenizer.decode(ids)[1:]


def test_a_naive_detokenizer_would_fail_here():
    """The negative control: decoding token by token is not the full decode."""
    tokenizer = tokenizer_of("byte_level")
    ids = tokenizer.encode("🙂", add_special_tokens=False)
    assert "".join(tokenizer.decode([i]) for i in ids) != tokenizer.decode(ids)
