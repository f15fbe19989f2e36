from __future__ import annotations

import re

import pytest

from ingot.runtime.marks import Marks, encode_marked, without_marks
from ingot.runtime.tokenizer import Tokenizer
from tests.runtime import fake_tokenizer

SPELLINGS = re.compile("abc|bcd")


def test_spellings_that_overlap_are_broken():
    marks = Marks(SPELLINGS, [{"content": "xabcd, bcd \ue000"}])
    assert marks.mark == "\ue001"
    assert marks.marked(["xabcd", {"bcd": 1}]) == ["xa\ue001b\ue001cd", {"b\ue001cd": 1}]
    assert without_marks("xa\ue001b\ue001cd", marks.mark) == "xabcd"


@pytest.mark.parametrize("spellings", [SPELLINGS, None])
def test_without_spellings_nothing_is_changed(spellings):
    given = ({"content": "ab", "parts": (1, None)},)
    marks = Marks(spellings, given)
    assert marks.mark == "" and marks.marked(given) is given
    assert without_marks("abc", "") == "abc"


def test_what_is_marked_becomes_no_special_token():
    tokenizer = Tokenizer(fake_tokenizer.byte_level().to_str().encode())
    marks = Marks(tokenizer.special_spellings, ["a</s>b"])
    ids = encode_marked(tokenizer, f"</s>{marks.marked('a</s>b')}", marks.mark)
    assert ids[0] == 319 and ids.count(319) == 1
    assert tokenizer.decode(ids, False) == "</s>a</s>b"
    assert encode_marked(tokenizer, "a", "", add_special_tokens=True)[0] == 318


@pytest.mark.parametrize("config", [{}, {"chat_control_tokens": ["extra317", "other"]}])
def test_tokens_of_templates_are_spellings_where_the_config_lists_them(config):
    tokenizer = Tokenizer(fake_tokenizer.byte_level().to_str().encode(), config)
    found = tokenizer.special_spellings
    assert found and found.search("</s>")
    assert bool(found.search("extra317")) is bool(config)
    assert not found.search("extra316")
