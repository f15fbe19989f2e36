from __future__ import annotations

import json
import sys
import threading

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ingot.artifact.reader import Artifact
from ingot.errors import RequestError, TokenizerError
from ingot.runtime.tokenizer import Tokenizer
from ingot.runtime.tokenizer_files import TokenizerFiles
from tests.runtime import fake_tokenizer
from tests.runtime.fake_model import write_fake
from tests.support.fake_engine import bundled_tokenizer

TEXTS = ["", " ", "the lazy dog", "  two  spaces\n\n", "héllo 你好 🙂", "a</s>b<s>", "\x00"]
CONFIGS = [
    {},
    {"add_bos_token": True},
    {"add_bos_token": False},
    {"add_bos_token": True, "add_eos_token": True},
    {"add_eos_token": True},
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("add", [True, False])
def test_tokens_are_those_of_transformers(tmp_path, config, add):
    config = {"bos_token": "<s>", "eos_token": "</s>"} | config
    data = json.loads(fake_tokenizer.byte_level().to_str())
    data["truncation"] = {
        "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    data["padding"] = {
        "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 319, "pad_type_id": 0, "pad_token": "</s>",
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    full = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(full))
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ours = Tokenizer(json.dumps(data).encode(), config, vocab_size=320)
    for text in TEXTS:
        ids = theirs.encode(text, add_special_tokens=add, truncation=False)
        assert ours.encode(text, add_special_tokens=add) == ids, text
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(tmp_path):
    data = fake_tokenizer.byte_level().to_str().encode()
    with pytest.raises(TokenizerError, match="token 319; the model's vocabulary has 319"):
        Tokenizer(data, vocab_size=319)
    Tokenizer(data, vocab_size=320)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"model": {"type": "X"}}'])
def test_a_file_that_is_no_tokenizer_is_refused_by_name(data):
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Tokenizer(data)


def test_a_broken_config_is_refused_by_name(tmp_path):
    files = {"tokenizer/tokenizer_config.json": b"[1]"}
    artifact = Artifact.open(write_fake(tmp_path / "a.ingot", files=files))
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json"):
        _ = TokenizerFiles(artifact).tokenizer


def test_an_artifact_without_a_tokenizer_says_what_to_do(tmp_path):
    artifact = Artifact.open(write_fake(tmp_path / "a.ingot", tokenizer=False))
    with pytest.raises(TokenizerError, match="prompt_token_ids"):
        _ = TokenizerFiles(artifact).tokenizer


@pytest.mark.parametrize("text", ["\ud800", "a\udcff"])
def test_half_a_character_is_not_utf8(text):
    tokenizer = Tokenizer(fake_tokenizer.byte_level().to_str().encode())
    with pytest.raises(RequestError, match="not valid UTF-8") as caught:
        tokenizer.encode(text)
    assert "UTF-8" in caught.value.hint


@pytest.mark.parametrize("text", [None, 5, b"abc", "\ud800"])
def test_what_is_no_text_is_refused(text):
    tokenizer = Tokenizer(fake_tokenizer.byte_level().to_str().encode())
    with pytest.raises(RequestError):
        tokenizer.encode(text)


def test_a_call_and_the_ids_of_special_tokens_are_those_of_transformers():
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    ours = Tokenizer(fake_tokenizer.byte_level().to_str().encode(), config)
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=fake_tokenizer.byte_level(), bos_token="<s>", eos_token="</s>"
    )
    for given in ("the lazy dog", "", TEXTS):
        for add in (True, False):
            wanted = theirs(given, add_special_tokens=add, return_token_type_ids=False)
            found = ours(given, add_special_tokens=add)
            assert dict(found) == dict(wanted)
            assert found["input_ids"] == found.input_ids
            assert found["attention_mask"] == found.attention_mask
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert (ours.bos_token_id, ours.eos_token_id) == (318, 319)
    assert ours([]) == {"input_ids": [], "attention_mask": []}


def test_a_tokenizer_without_special_tokens_has_no_ids_of_them():
    data, config = fake_tokenizer.metaspace().to_str().encode(), {"eos_token": "<none>"}
    tokenizer = Tokenizer(data, config, vocab_size=11)  # 12 would have room for it
    assert tokenizer.bos_token_id is tokenizer.eos_token_id is None


@pytest.mark.parametrize("text", [None, 5, ["a", 5], [["a"]], {"a": 1}])
def test_a_call_refuses_what_is_no_text(text):
    with pytest.raises(RequestError, match="type"):
        Tokenizer(fake_tokenizer.byte_level().to_str().encode())(text)


def test_other_threads_run_while_a_text_is_encoded():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # so that another thread runs only where this one lets it
    go, ran = threading.Lock(), []
    go.acquire()
    other = threading.Thread(target=lambda: go.acquire() and ran.append(True))
    try:
        other.start()
        tokenizer, text = bundled_tokenizer(), "To be, or not to be. " * 20_000
        go.release()
        assert len(tokenizer.encode(text)) > 100_000 and ran
    finally:
        sys.setswitchinterval(before)
        other.join()


@pytest.mark.parametrize("names", [None, ["input_ids"], ["input_ids", "token_type_ids"]])
@pytest.mark.parametrize("kind", ["BertTokenizer", "PreTrainedTokenizerFast", None])
def test_pairs_have_types_where_transformers_gives_some(tmp_path, kind, names):
    config = {"tokenizer_class": kind, "model_input_names": names}
    config = {key: value for key, value in config.items() if value is not None}
    data = fake_tokenizer.word_pieces().to_str().encode()
    (tmp_path / "tokenizer.json").write_bytes(data)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    judge = AutoTokenizer.from_pretrained(tmp_path)("ab", "cd")
    types = judge.get("token_type_ids", [0])
    second = types.index(1) if 1 in types else 0
    assert Tokenizer(data, config).encode_texts([("ab", "cd")]) == [(judge["input_ids"], second)]
    assert (second > 0) == ("token_type_ids" in (names or []) or (kind, names) in WITH_TYPES)


WITH_TYPES = [("BertTokenizer", None), (None, None)]
