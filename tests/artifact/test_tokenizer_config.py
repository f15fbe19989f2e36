"""What a tokenizer_config.json makes of a tokenizer, held to transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken
from transformers import AutoTokenizer

from ingot.artifact.tokenizer_config import (
    configure,
    control_tokens,
    parsed_config,
    special_tokens,
)
from ingot.errors import TokenizerError
from tests.runtime import fake_tokenizer

TEXTS = ["a </s> b", "x<|end|>y  <|end|>", "<|new|><mask_1><s>!", "  Hello world", "héllo", "[P] z"]
END = {"content": "<|end|>", "lstrip": False, "rstrip": False, "normalized": False}
CONFIGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "named": {"bos_token": "<s>", "eos_token": "<|end|>", "pad_token": "[P]", "unk_token": None},
    "flags of a named one": {"eos_token": {"__type": "AddedToken", **END, "content": "<|new|>"}},
    "named by the model alone": {"image_token": "<|end|>"},
    "named, and strips": {
        "eos_token": {"__type": "AddedToken", **END},
        "added_tokens_decoder": {"320": {**END, "rstrip": True}},
    },
    "named and extra": {"eos_token": "<|new|>", "extra_special_tokens": ["<|new|>", "[P]"]},
    "empty": {"bos_token": ""},
    "special": {"added_tokens_decoder": {"320": {**END, "special": True}}},
    "no longer special": {"added_tokens_decoder": {"319": {**END, "content": "</s>"}}},
    "strips": {"added_tokens_decoder": {"320": {**END, "rstrip": True, "lstrip": True}}},
    "one more": {"added_tokens_decoder": {"321": {**END, "content": "<|new|>", "special": True}}},
    "extra": {"extra_special_tokens": ["<mask_1>", "<|end|>"]},
    "extra by another name": {"additional_special_tokens": ["<mask_1>"]},
    "extra with names": {"extra_special_tokens": {"image_token": "<mask_1>"}},
    "a name of its own": {"image_token": "<mask_1>", "add_bos_token": False},
    "split": {"split_special_tokens": True},
    "spaces that do not count": {"add_prefix_space": True},
}


def saved(folder: Path, backend: tokenizers.Tokenizer, config: dict[str, Any]) -> Any:
    """The tokenizer of transformers from these files."""
    (folder / "tokenizer.json").write_text(backend.to_str())
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return AutoTokenizer.from_pretrained(folder)


def configured(backend: tokenizers.Tokenizer, config: dict[str, Any], **more: Any) -> Any:
    ours = tokenizers.Tokenizer.from_str(backend.to_str())
    configure(ours, {"tokenizer_class": "PreTrainedTokenizerFast", **config}, **more)
    return ours


def with_end() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer.from_str(fake_tokenizer.byte_level().to_str())
    backend.add_tokens([AddedToken("<|end|>", normalized=False, special=False)])
    return backend


def assert_alike(ours: tokenizers.Tokenizer, theirs: Any) -> None:
    for text in TEXTS:
        ids = theirs.encode(text)
        assert ours.encode(text).ids == ids, text
        for skips in (True, False):
            assert ours.decode(ids, skips) == theirs.decode(ids, skip_special_tokens=skips), text


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    theirs = saved(tmp_path, with_end(), config)
    assert_alike(configured(with_end(), config), theirs)
    assert special_tokens(config) == theirs.special_tokens_map


def test_a_token_that_either_file_calls_special_is_special() -> None:
    """As decoding has it: the library hides what was special once."""
    for name, token_id in (("no longer special", 319), ("special", 320)):
        assert configured(with_end(), CONFIGS[name]).get_added_tokens_decoder()[token_id].special


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("legacy", [True, False, None])
@pytest.mark.parametrize("begins", [True, False])
def test_pieces_begin_with_a_space_as_the_config_says(
    prefix: bool, legacy: bool | None, begins: bool, tmp_path: Path
) -> None:
    backend = tokenizers.Tokenizer.from_str(fake_tokenizer.byte_fallback().to_str())
    if not begins:
        backend.normalizer = tokenizers.normalizers.Replace(" ", "▁")
        backend.decoder = tokenizers.decoders.Sequence(
            [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback()]
        )
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": legacy}
    config = {"tokenizer_class": "LlamaTokenizerFast", "add_prefix_space": prefix, **named}
    if prefix == begins:
        assert configured(backend, config).to_str() == backend.to_str()
    else:
        assert_alike(configured(backend, config), saved(tmp_path, backend, config))


@pytest.mark.parametrize("prefix", [True, False])
def test_words_of_bytes_begin_with_a_space_as_the_config_says(prefix: bool, tmp_path: Path) -> None:
    config = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": prefix, "bos_token": "<s>"}
    config |= {"eos_token": "</s>", "unk_token": "<s>"}
    assert_alike(configured(with_end(), config), saved(tmp_path, with_end(), config))


@pytest.mark.parametrize("make", [with_end, fake_tokenizer.metaspace])
def test_what_the_class_cannot_be_keeps_what_it_has(make: Any) -> None:
    config = {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": True}
    assert configured(make(), config).to_str() == make().to_str()


def test_tokens_without_a_row_in_the_model_stay_text() -> None:
    config = {"eos_token": "<|end|>", "extra_special_tokens": ["<a>", "<b>"]}
    assert configured(with_end(), config).token_to_id("<b>") == 322
    ours = configured(with_end(), config, vocab_size=322)
    assert (ours.token_to_id("<a>"), ours.token_to_id("<b>")) == (321, None)
    assert configured(with_end(), config, vocab_size=2).token_to_id("<a>") is None


WRONG: dict[str, dict[str, Any]] = {
    "bos_token": {"bos_token": 5},
    "eos_token": {"eos_token": {"content": None}},
    "added_tokens_decoder": {"added_tokens_decoder": ["a"]},
    r"added_tokens_decoder\['a'\]": {"added_tokens_decoder": {"a": END}},
    r"added_tokens_decoder\['-1'\]": {"added_tokens_decoder": {"-1": END}},
    r"added_tokens_decoder\['7'\]": {"added_tokens_decoder": {"7": "a"}},
    r"added_tokens_decoder\[8\]": {"added_tokens_decoder": {"8": {**END, "lstrip": 1}}},
    r"added_tokens_decoder\[9\]": {"added_tokens_decoder": {"9": {}}},
    "extra_special_tokens": {"extra_special_tokens": "<a>"},
    "extra_special_tokens = 5": {"extra_special_tokens": [5]},
    "image_token": {"extra_special_tokens": {"image_token": 5}},
}


@pytest.mark.parametrize("named", WRONG)
def test_values_of_a_wrong_type_are_refused_by_name(named: str) -> None:
    with pytest.raises(TokenizerError, match=rf"tokenizer_config\.json has {named}") as caught:
        configure(with_end(), WRONG[named])
    assert caught.value.hint


@pytest.mark.parametrize("data", [b"", b"[1]", b"\xff", b"{", b"[" * 10**5])
def test_what_is_no_object_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(TokenizerError, match=r"added_tokens\.json"):
        parsed_config(data, "added_tokens.json")


def test_tokens_of_templates_are_a_list() -> None:
    assert control_tokens({}) == control_tokens({"chat_control_tokens": None}) == frozenset()
    assert control_tokens({"chat_control_tokens": ["<a>"]}) == {"<a>"}
    with pytest.raises(TokenizerError, match="chat_control_tokens"):
        control_tokens({"chat_control_tokens": "<a>"})
