"""Prompts from files, from a seed and from artifacts; what cannot be one is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from ingot.compare.prompts import ComparedPrompt, given_prompts, golden_prompts, random_prompts
from ingot.compare.sides import Side, open_side
from ingot.compiler import prompt_file
from ingot.compiler.prompt_file import read_prompts
from ingot.errors import RequestError, UsageError
from ingot.runtime.goldens import read_golden
from ingot.runtime.tokenizer import Tokenizer
from tests.compare.table_side import TableSide, successor_table


def side(words: str = "a b c", **options) -> TableSide:
    """A side of 8 tokens whose tokenizer has the words in that order; "" gives it none."""
    made = TableSide(successor_table(), **options)
    if words:
        vocabulary = {word: token for token, word in enumerate(words.split())}
        backend = Backend(WordLevel(vocabulary, unk_token=words.split()[0]))
        backend.pre_tokenizer = Whitespace()
        made.tokenizer = Tokenizer(backend.to_str().encode())
    return made


def read(tmp_path: Path, content: str | bytes, *sides: Side) -> list[tuple[int, ...]]:
    path = tmp_path / "prompts"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return [
        prompt.tokens for prompt in given_prompts(read_prompts(path), sides or (side(), side("")))
    ]


def test_a_text_a_line(tmp_path):
    assert read(tmp_path, "a b\n\n  \nc b a\r\nb") == [(0, 1), (2, 1, 0), (1,)]
    assert read(tmp_path, b"\xef\xbb\xbfc\n") == [(2,)]  # as Windows writes UTF-8


def test_json_a_line_with_texts_and_tokens(tmp_path):
    lines = [{"prompt": "a\nb"}, {"prompt": [7, 0], "id": 3}, {"prompt": "c"}]
    assert read(tmp_path, "\n".join(map(json.dumps, lines))) == [(0, 1), (7, 0), (2,)]


def test_a_text_that_begins_like_json_is_a_text(tmp_path):
    assert read(tmp_path, "{ a\n[1, 2]") == [(0, 0), (0, 0, 0, 0, 0)]


def test_tokens_need_no_tokenizer(tmp_path):
    assert read(tmp_path, '{"prompt": [5, 6]}', side(""), side("")) == [(5, 6)]


def test_a_prompt_says_where_it_stands(tmp_path):
    (tmp_path / "p.txt").write_text("\na\n")
    found = given_prompts(read_prompts(tmp_path / "p.txt"), (side(),))
    assert found == [ComparedPrompt(f"line 2 of {tmp_path / 'p.txt'}", (0,))]


# The content of a file, and what is said of it.
REFUSED = {
    "empty": ("", "has no prompt"),
    "blank": (" \n\t\n", "has no prompt"),
    "no UTF-8": (b"a\n\xff\xfe", "is no text in UTF-8: byte 2"),
    "a program": (b"\x7fELF\0\0", "has NUL characters"),
    "another line": ('{"prompt": "a"}\na b', "line 2 of"),
    "another key": ('{"text": "a"}', "line 1 of"),
    "no tokens": ('{"prompt": []}', "line 1 of"),
    "no text": ('{"prompt": ""}', "line 1 of"),
    "floats": ('{"prompt": [1.5]}', "line 1 of"),
    "bools": ('{"prompt": [true]}', "line 1 of"),
    "nothing of a word": ('{"prompt": " "}', "has no tokens"),
    "an unknown token": ('{"prompt": [1]}\n{"prompt": [7, 8]}', "has token 8"),
    "a negative token": ('{"prompt": [-1]}', "has token -1"),
    "too long": (" ".join("a" * 17), "has 17 tokens"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_prompt_is_refused(name, tmp_path):
    content, said = REFUSED[name]
    with pytest.raises((UsageError, RequestError), match=said) as caught:
        read(tmp_path, content)
    assert caught.value.exit_code == 2 and caught.value.hint


@pytest.mark.parametrize("what", ["nothing", "a folder", "too large"])
def test_a_file_that_cannot_be_read_is_refused(what, tmp_path, monkeypatch):
    path = tmp_path / "prompts"
    if what == "a folder":
        path.mkdir()
    if what == "too large":
        monkeypatch.setattr(prompt_file, "MAX_BYTES", 4)
        path.write_text("a b c")
    with pytest.raises(UsageError, match="cannot be read"):
        read_prompts(path)


def test_the_limit_is_that_of_the_side_which_takes_less(tmp_path):
    sides = (side(max_model_len=None), side(max_model_len=2, name="short"))
    with pytest.raises(RequestError, match="has 3 tokens") as caught:
        read(tmp_path, "a b c", *sides)
    assert caught.value.hint == "short takes at most 2."


def test_texts_need_a_tokenizer(tmp_path):
    with pytest.raises(UsageError, match="neither side has a tokenizer"):
        read(tmp_path, "a", side(""), side(""))


def test_tokenizers_that_differ_are_refused(tmp_path):
    sides = side(name="one"), side("a c b", name="other")
    assert read(tmp_path, "a a", *sides) == [(0, 0)]
    with pytest.raises(UsageError, match=r"is \[0, 1\] to one, and \[0, 2\] to other"):
        read(tmp_path, "a b", *sides)


def test_random_prompts_follow_from_the_seed_and_keep_to_the_limits():
    sides = (side(max_model_len=9), side(max_model_len=None))
    found = random_prompts(50, 3, sides)
    assert found == random_prompts(50, 3, sides) != random_prompts(50, 4, sides)
    assert {len(prompt.tokens) for prompt in found} == set(range(1, 10))
    assert {token for prompt in found for token in prompt.tokens} == set(range(8))


def test_goldens_are_those_of_the_artifact_cut_to_what_both_take(shakespeare_artifact):
    artifact = open_side(str(shakespeare_artifact))
    whole = [tuple(prompt.tokens) for prompt in read_golden(artifact.artifact).prompts]
    assert [prompt.tokens for prompt in golden_prompts((side(), artifact))] == list(
        dict.fromkeys(tokens[:16] for tokens in whole)
    )
    assert [prompt.tokens for prompt in golden_prompts((artifact, artifact))] == whole


def test_without_an_artifact_goldens_are_those_of_a_compile(shakespeare_dir, shakespeare_artifact):
    artifact, directory = map(open_side, map(str, (shakespeare_artifact, shakespeare_dir)))
    try:
        assert golden_prompts((directory, side(""))) != golden_prompts((directory,))
        assert golden_prompts((directory,)) == golden_prompts((artifact,))
    finally:
        directory.close()


def test_goldens_need_a_tokenizer_where_there_is_no_artifact():
    with pytest.raises(UsageError, match="neither side has a tokenizer"):
        golden_prompts((side(""), side("")))
