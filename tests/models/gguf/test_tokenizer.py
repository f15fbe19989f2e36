"""Tokenizers out of metadata: the tokens of the tokenizer.json that they were written from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.integrations.gguf.gguf_tokenizer_mapping import (
    GGUF_PRE_TOKENIZER_SPLITS,
    convert_gguf_tokenizer,
    get_gguf_tokenizer,
)

from bench.make_model import write_byte_tokenizer
from ingot.errors import ConfigError, TokenizerError
from ingot.models.gguf.model import SmallFiles
from ingot.models.gguf.splits import SPLITS
from ingot.models.gguf.tokenizer import _bpe
from tests.conftest import SHAKESPEARE
from tests.support.core import core
from tests.support.gguf_files import write_ends, write_tokenizer

TEXTS = (
    "Hello, World! I'll pay 1234567 $ for 3.5 kg.",
    "  two  spaces, a\ttab\n\n\nand lines \n",
    "naïve café — ÄÖÜ ß 日本語 ещё 한국어 🙂👩‍👩‍👧",
    "e\u0301 composed, DON'T they'Re HTTPServer2go",
    "def f(x):\n    return x ** 2  # comment\n",
    " leading",
    "",
)
CORPUS = [*TEXTS, *(SHAKESPEARE / "README.md").read_text().splitlines()] * 2


def write(path: Path, architecture: str, keys: Any) -> Path:
    writer = gguf.GGUFWriter(str(path), architecture)
    keys(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def read(path: Path) -> Tokenizer:
    return Tokenizer.from_str(SmallFiles(path)("tokenizer.json").decode())


def save_bytes(folder: Path, pattern: str, *, whole: bool, composed: bool) -> Tokenizer:
    """A tokenizer.json of bytes, trained with that pattern."""
    from tokenizers import AddedToken, Regex

    made = Tokenizer(models.BPE(ignore_merges=whole))
    made.normalizer = normalizers.NFC() if composed else None
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, show_progress=False, min_frequency=2
    )
    made.train_from_iterator(CORPUS, trainer)
    made.add_special_tokens(["<|begin|>", "<|end|>"])
    made.add_tokens([AddedToken("<think>", normalized=False)])
    made.save(str(folder / "tokenizer.json"))
    size = made.get_vocab_size()
    config = {"vocab_size": size + 5, "bos_token_id": size - 3, "eos_token_id": size - 2}
    (folder / "config.json").write_text(json.dumps(config))
    return made


@pytest.mark.parametrize(
    "pre", core("llama-bpe", "qwen2", further=["tekken", "gpt-4o", "deepseek-r1-qwen"])
)
def test_bytes_with_the_split_of_a_model(pre: str, tmp_path: Path) -> None:
    splits = SPLITS[pre]
    if pre in GGUF_PRE_TOKENIZER_SPLITS:
        assert splits.patterns == (GGUF_PRE_TOKENIZER_SPLITS[pre],), "that of transformers"
    expected = save_bytes(
        tmp_path, splits.patterns[0], whole=splits.whole, composed=splits.composed
    )

    def keys(writer: gguf.GGUFWriter) -> None:
        write_tokenizer(writer, tmp_path, pre)
        write_ends(writer, json.loads((tmp_path / "config.json").read_text()))

    found = read(write(tmp_path / "m.gguf", "qwen2", keys))
    for text in (*TEXTS, "<|begin|>a<think> b</think><|end|>"):
        ids = found.encode(text, add_special_tokens=False).ids
        assert ids == expected.encode(text, add_special_tokens=False).ids, text
        assert found.decode(ids, skip_special_tokens=False) == expected.decode(
            ids, skip_special_tokens=False
        )
    bos = expected.token_to_id("<|begin|>")
    assert (found.encode("a").ids[0] == bos) == splits.begins
    assert found.get_vocab_size() == expected.get_vocab_size(), "what is unused is left out"


def test_the_bundled_tokenizer_comes_back(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", "qwen3", lambda w: write_tokenizer(w, SHAKESPEARE))
    found, expected = read(path), Tokenizer.from_file(str(SHAKESPEARE / "tokenizer.json"))
    assert found.get_vocab() == expected.get_vocab()
    for text in TEXTS:
        assert found.encode(text).ids == expected.encode(text).ids


def test_bytes_alone_need_no_merges(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path, 300)
    (tmp_path / "config.json").write_text('{"vocab_size": 300}')
    path = write(tmp_path / "m.gguf", "qwen3", lambda w: write_tokenizer(w, tmp_path))
    expected = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        assert read(path).encode(text).ids == expected.encode(text).ids

    def without(writer: gguf.GGUFWriter) -> None:
        writer.add_token_merges = lambda merges: None
        write_tokenizer(writer, SHAKESPEARE)

    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match="a vocabulary of bytes without merges"):
        read(write(tmp_path / "n.gguf", "qwen3", without))


def test_every_split_of_transformers_is_ours() -> None:
    for name, pattern in GGUF_PRE_TOKENIZER_SPLITS.items():
        if name in SPLITS:
            assert SPLITS[name].patterns == (pattern,), name
    assert len(SPLITS.keys() & GGUF_PRE_TOKENIZER_SPLITS.keys()) >= 18


PIECES = ["▁", "e", "t", "a", "o", "h", "l", "▁t", "he", "▁the", "▁a", "ll", "▁▁", "el", "lo", "1"]


def pieces_of(extra: tuple[str, ...] = ()) -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and kinds in the order of Llama 2's vocabulary."""
    kinds = gguf.TokenType
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *PIECES, *extra]
    types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * 256]
    types += [kinds.NORMAL] * len(PIECES) + [kinds.USER_DEFINED] * len(extra)
    scores = [0.0] * 259 + [-float(i) for i in range(len(PIECES) + len(extra))]
    return tokens, scores, types


def write_pieces(writer: gguf.GGUFWriter, *extra: str, **flags: bool) -> None:
    tokens, scores, types = pieces_of(extra)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    for name, token in (("bos", 1), ("eos", 2), ("unk", 0)):
        getattr(writer, f"add_{name}_token_id")(token)
    for name, value in flags.items():
        getattr(writer, f"add_{name}")(value)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "phi3"])
def test_pieces_are_cut_as_transformers_does(architecture: str, tmp_path: Path) -> None:
    flags = {"add_space_prefix": False} if architecture == "gemma2" else {}
    path = write(tmp_path / "m.gguf", architecture, lambda w: write_pieces(w, **flags))
    expected, _ = convert_gguf_tokenizer(*get_gguf_tokenizer(str(path))[:2])
    found = read(path)
    for text in ("the hello", "a the  total 1\n2", "é🙂 ta", "thethe tall"):
        ids = found.encode(text, add_special_tokens=False).ids
        assert ids == expected.encode(text, add_special_tokens=False).ids, text
        assert found.decode(ids) == text
    assert found.encode("the").ids[0] == 1, "a text begins with <s>"


def test_a_text_of_pieces_begins_with_a_space_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", "llama", write_pieces)
    found = read(path)
    assert found.encode("the", add_special_tokens=False).tokens == ["▁the"]
    assert found.encode(" the", add_special_tokens=False).tokens == ["▁", "▁the"]
    without = write(tmp_path / "n.gguf", "llama", lambda w: write_pieces(w, add_space_prefix=False))
    assert read(without).encode("the", add_special_tokens=False).tokens == ["t", "he"]


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("eos", [True, False])
def test_the_file_says_what_stands_around_a_text(bos: bool, eos: bool, tmp_path: Path) -> None:
    flags = {"add_bos_token": bos, "add_eos_token": eos}
    found = read(write(tmp_path / "m.gguf", "llama", lambda w: write_pieces(w, **flags)))
    ids = found.encode("a").ids
    assert (ids[0] == 1, ids[-1] == 2) == (bos, eos)
    assert found.encode("a", add_special_tokens=False).ids == ids[bos : len(ids) - eos]


def test_special_tokens_and_templates(tmp_path: Path) -> None:
    def keys(writer: gguf.GGUFWriter) -> None:
        write_pieces(writer, "<|im_end|>", "<think>")
        writer.add_chat_template("{{ messages }}")
        writer.add_uint32("tokenizer.ggml.eot_token_id", 5)
        writer.add_float32("general.sampling.temp", 0.6)
        writer.add_int32("general.sampling.top_k", 20)

    path = write(tmp_path / "m.gguf", "llama", keys)
    config = json.loads(SmallFiles(path)("tokenizer_config.json"))
    assert config == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": "{{ messages }}",
    }
    ends = json.loads(SmallFiles(path)("generation_config.json"))
    im_end = 259 + len(PIECES)
    assert ends["eos_token_id"] == [2, 5, im_end]
    assert (ends["temperature"], ends["top_k"], ends["do_sample"]) == (0.6, 20, True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, {}),
        ({"temp": 0.0}, {"temperature": 0.0}),
        ({"min_p": 0.25}, {"do_sample": True, "min_p": 0.25}),
        (
            {"temp": 0.5, "penalty_repeat": 1.5, "top_p": 0.75},
            {"do_sample": True, "temperature": 0.5, "repetition_penalty": 1.5, "top_p": 0.75},
        ),
    ],
)
def test_how_to_sample_is_what_the_file_says(
    given: dict[str, float], said: dict[str, Any], tmp_path: Path
) -> None:
    def keys(writer: gguf.GGUFWriter) -> None:
        write_pieces(writer)
        for name, value in given.items():
            writer.add_float32(f"general.sampling.{name}", value)

    path = write(tmp_path / "m.gguf", "llama", keys)
    found = json.loads(SmallFiles(path)("generation_config.json"))
    assert {k: v for k, v in found.items() if not k.endswith("_token_id")} == said


def test_a_setting_of_the_sampler_is_a_number(tmp_path: Path) -> None:
    def keys(writer: gguf.GGUFWriter) -> None:
        write_pieces(writer)
        writer.add_string("general.sampling.temp", "hot")

    path = write(tmp_path / "m.gguf", "llama", keys)
    with pytest.raises(ConfigError, match=r"general\.sampling\.temp = 'hot'"):
        SmallFiles(path)("generation_config.json")


@pytest.mark.parametrize("default", [True, False])
def test_templates_with_names(default: bool, tmp_path: Path) -> None:
    def keys(writer: gguf.GGUFWriter) -> None:
        write_pieces(writer)
        writer.add_chat_template([{"name": "tool_use", "template": "T"}])
        if default:
            writer.add_chat_template("D")

    config = json.loads(
        SmallFiles(write(tmp_path / "m.gguf", "llama", keys))("tokenizer_config.json")
    )
    named = {each["name"]: each["template"] for each in config["chat_template"]}
    assert named == {"tool_use": "T"} | ({"default": "D"} if default else {})


def test_tokens_that_are_cut_inside_of_a_character_are_tokens(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", "llama", lambda writer: write_pieces(writer, "<odd>"))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"<odd>", b"<od\xe2>"))
    assert read(path).encode("the").tokens == ["<s>", "▁the"]
    assert read(path).id_to_token(259 + len(PIECES)) == "<od\ufffd>"


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        (("<|return|>", "<|call|>", "<|end|>"), [0, 1]),
        (("<|return|>", "<|end|>"), [0, 1]),
        (("<|end|>",), [0]),
    ],
)
def test_a_message_of_gpt_oss_is_not_all_of_its_answer(
    tokens: tuple[str, ...], ends: list[int], tmp_path: Path
) -> None:
    path = write(tmp_path / "m.gguf", "llama", lambda writer: write_pieces(writer, *tokens))
    found = json.loads(SmallFiles(path)("generation_config.json"))["eos_token_id"]
    assert found == [2, *(259 + len(PIECES) + end for end in ends)]


UNKNOWN = {
    "a kind": (lambda w: w.add_tokenizer_model("bert"), "a tokenizer of the kind 'bert'"),
    "no kind": (lambda w: None, "a tokenizer of the kind 'none'"),
    "a split": (
        lambda w: write_tokenizer(w, SHAKESPEARE, "tomorrow"),
        "the pre-tokenizer 'tomorrow'",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_names_what_to_do(name: str, tmp_path: Path) -> None:
    keys, said = UNKNOWN[name]
    path = write(tmp_path / "m.gguf", "qwen3", keys)
    with pytest.raises(TokenizerError, match=said) as caught:
        read(path)
    assert f"save tokenizer.json of the model that it was made from in the folder {tmp_path}" in (
        caught.value.hint
    )
    whole = (SHAKESPEARE / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(whole)
    assert SmallFiles(path)("tokenizer.json") == whole


def test_a_tokenizer_beside_a_file_with_one_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", "llama", write_pieces)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert read(path).encode("the").tokens == ["<s>", "▁the"]


def test_merges_are_pairs_only_where_a_part_has_a_space() -> None:
    """As one text they take half the bytes, and a file of a small model is mostly these."""
    plain, spaced = [["a", "b"], ["ab", "c"]], [["a", " b"]]
    assert _bpe({}, plain)["merges"] == ["a b", "ab c"]
    assert _bpe({}, spaced)["merges"] == spaced
