"""Applies tokenizer_config.json to tokenizer.json, as transformers does.

Its `added_tokens_decoder` overrules the added tokens of tokenizer.json, but a token that either
calls special is special. Its named and extra special tokens become special ones where they are no
added tokens yet. `add_bos_token` and `add_eos_token` say nothing: tokenizer.json has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ingot.errors import TokenizerError

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

NAME = "tokenizer_config.json"
ADDED = "added_tokens_decoder"
EXTRA = "extra_special_tokens"
_EXTRA_BEFORE = "additional_special_tokens"
_NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_FLAGS = ("lstrip", "rstrip", "normalized", "single_word", "special")
# Classes that build their tokenizer anew by `add_prefix_space`; others take tokenizer.json's.
_OF_PIECES = frozenset({"LlamaTokenizer"})
_OF_BYTES = frozenset({"GPT2Tokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer", "CohereTokenizer"})
_SPACE = "▁"


def parsed_config(data: bytes, name: str = NAME) -> dict[str, Any]:
    """The object in tokenizer_config.json, or in the file beside it that messages call `name`.

    Raises TokenizerError.
    """
    hint = "It must be one JSON object in UTF-8; fetch the file again."
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{name} is not JSON: {error}", hint=hint) from error
    if not isinstance(found, dict):
        raise TokenizerError(f"{name} holds {type(found).__name__}, not an object", hint=hint)
    return found


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that have a name, as templates get them: `bos_token` and its like, and
    those of the model alone, such as `image_token`. Raises TokenizerError."""
    extra = config.get(EXTRA)
    own = {k: v for k, v in config.items() if k.endswith("_token") and isinstance(v, (str, dict))}
    named = {key: config.get(key) for key in _NAMED} | own
    named |= extra if isinstance(extra, dict) else {}
    found = ((key, value) for key, value in named.items() if value is not None)
    return {key: _spelling(key, value) for key, value in found}


def control_tokens(config: Mapping[str, Any]) -> frozenset[str]:
    """The added tokens that are no special ones, and that only templates may write."""
    found = config.get("chat_control_tokens") or []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise _wrong("chat_control_tokens", found, "a list of texts")
    return frozenset(found)


def configure(backend: Tokenizer, config: Mapping[str, Any], vocab_size: int | None = None) -> None:
    """Makes a tokenizer, as tokenizer.json gives it, what the config makes of it.

    Tokens whose ids would lie beyond the `vocab_size` of the model are not added: their text stays
    text. Raises TokenizerError for values of a wrong type.
    """
    backend.no_padding()
    backend.no_truncation()
    if tokens := _new_tokens(backend, config):
        backend.add_tokens(_with_room(backend, tokens, vocab_size))
    backend.encode_special_tokens = config.get("split_special_tokens") is True
    prefix, kind = config.get("add_prefix_space"), config.get("tokenizer_class")
    if isinstance(prefix, bool) and isinstance(kind, str):
        _prefix(backend, kind.removesuffix("Fast"), prefix, bool(config.get("legacy")))


def _new_tokens(backend: Tokenizer, config: Mapping[str, Any]) -> list[AddedToken]:
    """The added tokens that tokenizer.json lacks, or has otherwise, in the order of their ids."""
    there = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    named = set(special_tokens(config).values())
    special = named | {content for content, token in there.items() if token.special}
    wanted = {content: _entry(token) for content, token in there.items()}
    for _, where, value in sorted(_by_id(config), key=lambda entry: entry[0]):
        wanted[_spelling(where, value)] = _flags(where, value)
    for where, value in _special(config):
        content = _spelling(where, value)
        if content not in wanted:
            wanted[content] = _flags(where, value)
            special.add(content)
    tokens = (_token(content, flags, content in special) for content, flags in wanted.items())
    return [t for t in tokens if t.content and repr(t) != repr(there.get(t.content))]


def _by_id(config: Mapping[str, Any]) -> Iterator[tuple[int, str, Any]]:
    """Id, place and value of the tokens in `added_tokens_decoder`."""
    found = config.get(ADDED) or {}
    if not isinstance(found, dict):
        raise _wrong(ADDED, found, "an object")
    for key, value in found.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10) or not isinstance(value, dict):
            raise _wrong(f"{ADDED}[{key!r:.20}]", value, "an object, under a token id")
        yield int(key), f"{ADDED}[{key}]", value


def _special(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Place and value of the special tokens, first those that have a name."""
    extra = config.get(EXTRA)
    names = extra if isinstance(extra, dict) else {}
    for key in special_tokens(config):
        yield key, names.get(key, config.get(key))
    listed = extra or config.get(_EXTRA_BEFORE)
    if listed is not None and not isinstance(listed, (list, dict)):
        raise _wrong(EXTRA, listed, "a list of tokens, or an object")
    yield from ((EXTRA, value) for value in listed or () if isinstance(listed, list))


def _spelling(where: str, value: Any) -> str:
    content = value.get("content") if isinstance(value, dict) else value
    if not isinstance(content, str):
        raise _wrong(where, value, "a text, or an object with content")
    return content


def _flags(where: str, value: Any) -> dict[str, bool]:
    """Flags of an entry that decide how a token is found in a text."""
    given = value if isinstance(value, dict) else {}
    flags = {name: given[name] for name in _FLAGS if name in given}
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise _wrong(where, value, "an object whose flags are true or false")
    return flags


def _entry(token: AddedToken) -> dict[str, bool]:
    return {name: getattr(token, name) for name in _FLAGS}


def _token(content: str, flags: Mapping[str, bool], special: bool) -> AddedToken:
    from tokenizers import AddedToken

    return AddedToken(content, **{**flags, **({"special": True} if special else {})})


def _with_room(
    backend: Tokenizer, tokens: list[AddedToken], vocab_size: int | None
) -> list[AddedToken]:
    """Tokens whose ids lie within the vocabulary of the model."""
    if vocab_size is None:
        return tokens
    known = backend.get_added_tokens_decoder()
    first = max(backend.get_vocab_size(with_added_tokens=False), max(known, default=-1) + 1)
    new = [token for token in tokens if backend.token_to_id(token.content) is None]
    beyond = {token.content for token in new[max(vocab_size - first, 0) :]}
    return [token for token in tokens if token.content not in beyond]


def _prefix(backend: Tokenizer, kind: str, prefix: bool, legacy: bool) -> None:
    """Lets texts begin with a space, or not, as the class does it that the config names."""
    from tokenizers import pre_tokenizers

    before = _state(backend.pre_tokenizer)
    if kind in _OF_BYTES and before.get("type") == "ByteLevel":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=prefix, use_regex=before.get("use_regex", True)
        )
    text = json.dumps([before, _state(backend.normalizer)])
    is_bytes, begins = "ByteLevel" in text, "Prepend" in text or _begins(text)
    is_bpe = type(backend.model).__name__ == "BPE"
    if kind in _OF_PIECES and is_bpe and not is_bytes and begins != prefix:
        _rebuild(backend, prefix, legacy)


def _begins(text: str) -> bool:
    return '"prepend_scheme": "first"' in text or '"prepend_scheme": "always"' in text


def _state(part: Any) -> dict[str, Any]:
    """A part of a tokenizer as tokenizer.json spells it; nothing for none."""
    found: dict[str, Any] = {} if part is None else json.loads(part.__getstate__())
    return found


def _rebuild(backend: Tokenizer, prefix: bool, legacy: bool) -> None:
    """Replaces parts of tokenizer.json by those that LlamaTokenizer of transformers has."""
    from tokenizers import decoders, pre_tokenizers

    scheme = ("always" if legacy else "first") if prefix else "never"
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme=scheme, split=False)
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    backend.decoder = decoders.Sequence(parts)


def _wrong(where: str, value: Any, wanted: str) -> TokenizerError:
    return TokenizerError(
        f"{NAME} has {where} = {value!r:.60}",
        hint=f"It must be {wanted}; fetch the tokenizer's files again.",
    )
