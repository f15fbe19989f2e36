"""What an artifact has of the many files that transformers reads a tokenizer from."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer

from bench.make_model import write_byte_tokenizer
from ingot.compiler.tokenizer import copy_tokenizer, load_tokenizer
from ingot.compiler.tokenizer_files import tokenizer_files
from ingot.errors import TokenizerError
from ingot.models.model_dir import ModelDir
from ingot.runtime.tokenizer import Tokenizer as OurTokenizer

VOCAB_SIZE = 320
MAP = "special_tokens_map.json"
ADDED = "added_tokens.json"
CHAT = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "clock"}}]
TEXTS = ["a<|endoftext|>b", "x <|new|> y<|plain|>", "<m>"]


def template(name: str) -> str:
    return name + " {{ bos_token }}{{ eos_token }}{{ messages[0].content }}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tokenizer whose config names no special tokens."""
    folder = tmp_path / "model"
    folder.mkdir()
    write_byte_tokenizer(folder, VOCAB_SIZE)
    write(folder, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    return folder


def write(folder: Path, name: str, content: Any) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    text = content if isinstance(content, (str, bytes)) else json.dumps(content)
    path.write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))


def change(folder: Path, **values: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def ours_of(folder: Path, out: Path, vocab_size: int = VOCAB_SIZE) -> OurTokenizer:
    """The tokenizer of an artifact, from its files alone."""
    copy_tokenizer(ModelDir.open(folder), out, vocab_size)
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    jinja = files.get("chat_template.jinja")
    config = json.loads(files["tokenizer_config.json"])
    return OurTokenizer(
        files["tokenizer.json"],
        config,
        chat_template=None if jinja is None else jinja.decode(),
        vocab_size=vocab_size,
    )


DECODER = {"257": {"content": "<|im_end|>", "special": True}}
SIDE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a map": {MAP: {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|new|>"}}},
    "a map of more": {MAP: {"eos_token": "<|new|>", "extra_special_tokens": ["<m>"]}},
    "a map with names": {MAP: {"extra_special_tokens": {"image_token": "<m>"}}},
    "added tokens": {ADDED: {"<|new|>": 300, "<|plain|>": 301}, MAP: {"eos_token": "<|new|>"}},
    "added tokens that are there": {ADDED: {"<|endoftext|>": 256, "<|new|>": 258}},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "silent": {},
    "names": {"bos_token": "<|im_end|>", "extra_special_tokens": ["<|plain|>"]},
    "has added tokens": {"bos_token": "<|im_end|>", "added_tokens_decoder": DECODER},
}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("side", SIDE)
def test_files_count_as_in_transformers(
    side: str, config: str, model: Path, tmp_path: Path
) -> None:
    for name, content in SIDE[side].items():
        write(model, name, content)
    change(model, chat_template=template("C"), **CONFIGS[config])
    theirs = AutoTokenizer.from_pretrained(model)
    ours = ours_of(model, tmp_path / "out")
    assert ours.special_tokens == theirs.special_tokens_map
    rendered = theirs.apply_chat_template(CHAT, tokenize=False)
    assert ours.apply_chat_template(CHAT) == rendered
    for text in TEXTS:
        ids = theirs.encode(text)
        assert (
            ours.encode(text)
            == load_tokenizer(ModelDir.open(model), VOCAB_SIZE).encode(text).ids
            == ids
        )
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


FOLDER = "additional_chat_templates"
TEMPLATES: dict[str, dict[str, Any]] = {
    "one": {"chat_template.jinja": template("J")},
    "one and one for tools": {
        "chat_template.jinja": template("J"),
        f"{FOLDER}/tool_use.jinja": template("T"),
        f"{FOLDER}/notes.txt": "x",
    },
    "the folder's alone": {f"{FOLDER}/default.jinja": template("D")},
    "an empty folder": {f"{FOLDER}/notes.txt": "x"},
}


@pytest.mark.parametrize("files", TEMPLATES)
@pytest.mark.parametrize("old", [None, "C", [{"name": "default", "template": "N"}]], ids=str)
def test_templates_count_as_in_transformers(
    files: str, old: Any, model: Path, tmp_path: Path
) -> None:
    change(model, chat_template=old or template("C"))
    for name, content in TEMPLATES[files].items():
        write(model, name, content)
    theirs = AutoTokenizer.from_pretrained(model)
    ours = ours_of(model, tmp_path / "out")
    for tools in (None, TOOLS):
        rendered = theirs.apply_chat_template(CHAT, tools=tools, tokenize=False)
        assert ours.apply_chat_template(CHAT, tools=tools) == rendered


def test_the_template_of_a_processor_is_the_last_to_count(model: Path, tmp_path: Path) -> None:
    write(model, "chat_template.json", {"chat_template": template("P")})
    assert ours_of(model, tmp_path / "a").apply_chat_template(CHAT) == "P hi"
    change(model, chat_template=template("C"))
    assert ours_of(model, tmp_path / "b").apply_chat_template(CHAT) == "C hi"


def test_what_no_other_file_adds_to_stays_as_it_is(model: Path) -> None:
    write(model, "tokenizer_config.json", b'{ "bos_token":"<|endoftext|>" }')
    write(model, MAP, {"bos_token": "<|endoftext|>"})
    for name, data in tokenizer_files(ModelDir.open(model), VOCAB_SIZE).items():
        assert data == (model / name).read_bytes()


WRONG: dict[str, Any] = {
    MAP: b"[]",
    ADDED: {"<a>": "5"},
    f"{FOLDER}/tool_use.jinja": b"\xff",
    "chat_template.json": b"{",
    "tokenizer_config.json": b"nothing",
}


@pytest.mark.parametrize("name", WRONG)
def test_files_that_are_not_what_their_names_say_are_refused(name: str, model: Path) -> None:
    write(model, name, WRONG[name])
    with pytest.raises(TokenizerError, match=name.replace(".", r"\.")) as caught:
        load_tokenizer(ModelDir.open(model), VOCAB_SIZE)
    assert caught.value.hint


@pytest.mark.parametrize("index", [-1, True, None, 2.0])
def test_ids_of_added_tokens_are_ids(index: Any, model: Path) -> None:
    write(model, ADDED, {"<a>": index})
    with pytest.raises(TokenizerError, match=r"added_tokens\.json has '<a>'"):
        load_tokenizer(ModelDir.open(model), VOCAB_SIZE)


VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 2**40)
    | st.sampled_from(["", "<s>", "a", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["content", "special", "lstrip", "300", "-1"]), inner)
    ),
    max_leaves=4,
)
KEYS = (
    *("bos_token", "image_token", "additional_special_tokens", "extra_special_tokens"),
    *("added_tokens_decoder", "add_prefix_space", "legacy", "tokenizer_class", "chat_template"),
    *("split_special_tokens", "chat_control_tokens", "<a>"),
)
ODD = st.dictionaries(st.sampled_from(KEYS), VALUE, max_size=4)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(files=st.dictionaries(st.sampled_from(["tokenizer_config.json", MAP, ADDED]), ODD | VALUE))
def test_any_side_files_give_a_tokenizer_or_a_typed_error(
    files: dict[str, Any], model: Path
) -> None:
    for name in ("tokenizer_config.json", MAP, ADDED):
        (model / name).unlink(missing_ok=True)
    for name, content in files.items():
        write(model, name, content)
    with contextlib.suppress(TokenizerError):
        load_tokenizer(ModelDir.open(model), VOCAB_SIZE)
        made = tokenizer_files(ModelDir.open(model), VOCAB_SIZE)
        config = json.loads(made.get("tokenizer_config.json", b"{}"))
        ours = OurTokenizer(made["tokenizer.json"], config, vocab_size=VOCAB_SIZE)
        assert ours.special_spellings is None or ours.decode(ours.encode("a<s>")) is not None
        assert max(ours.encode("<a><s>a")) < VOCAB_SIZE
        assert ours.chat_template is None or isinstance(ours.chat_template, str)


def add(folder: Path, *tokens: str, special: bool = True) -> None:
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_tokens([AddedToken(token, special=special) for token in tokens])
    backend.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("in_vocabulary", [True, False])
def test_tokens_that_the_model_has_no_row_for_stay_text(
    in_vocabulary: bool, model: Path, tmp_path: Path
) -> None:
    """As the token for images of Gemma 3, in the file of its models of text."""
    add(model, "<image>")
    if in_vocabulary:
        path = model / "tokenizer.json"
        file = json.loads(path.read_text())
        file["model"]["vocab"]["<image>"] = 258
        path.write_text(json.dumps(file))
    size = load_tokenizer(ModelDir.open(model), None).token_to_id("<image>")
    assert size == 258
    ours = ours_of(model, tmp_path / "out", size)
    assert max(ours.encode("a<image>")) < size
    assert ours.decode(ours.encode("a<image>")) == "a<image>"
    assert ours.token(size) is None


@pytest.mark.parametrize(
    "needed", [{"eos_token": "<image>"}, {"chat_template": "<image>{{ messages }}"}], ids=str
)
def test_a_token_without_a_row_must_not_be_needed(needed: dict[str, Any], model: Path) -> None:
    add(model, "<image>")
    change(model, **needed)
    with pytest.raises(TokenizerError, match=r"token id 258, '<image>', but .* ends at 257"):
        load_tokenizer(ModelDir.open(model), 258)


def test_a_token_without_a_row_must_not_be_made_of_others(model: Path) -> None:
    path = model / "tokenizer.json"
    file = json.loads(path.read_text())
    file["model"] |= {"vocab": file["model"]["vocab"] | {"ab": 258}, "merges": [["a", "b"]]}
    path.write_text(json.dumps(file))
    with pytest.raises(TokenizerError, match=r"token id 258, but .* ends at 257"):
        load_tokenizer(ModelDir.open(model), 258)
    file["model"]["merges"] = []
    path.write_text(json.dumps(file))
    assert max(load_tokenizer(ModelDir.open(model), 258).encode("abc").ids) < 258
