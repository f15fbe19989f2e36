"""The tokenizer of a GGUF file, as the `tokenizer.json` that the `tokenizers` library reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from ingot.errors import TokenizerError
from ingot.models.gguf.metadata import Metadata
from ingot.models.gguf.splits import SPLITS

_KEY = "tokenizer.ggml."
# `tokenizer.ggml.token_type`
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
WHOLE = "tokenizer.huggingface.json"  # the file itself, which some converters put in
_SPACE = "▁"  # stands for a space in vocabularies of SentencePiece
# What is normal in a vocabulary of bytes: each byte has a printable character.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]


def tokenizer_json(metadata: Metadata) -> bytes:
    """The file. Raises TokenizerError for a tokenizer that is not known here."""
    if isinstance(whole := metadata.values.get(WHOLE), str):
        return whole.encode()
    kind = metadata.text(f"{_KEY}model", "")
    if kind not in _MODELS:
        raise unknown(metadata, f"a tokenizer of the kind {kind or 'none'!r}", "/".join(_MODELS))
    vocabulary = GgufVocabulary(metadata)
    parts = _MODELS[kind](vocabulary)
    file = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added(),
        "post_processor": vocabulary.around(),
        **parts,
    }
    return json.dumps(file, ensure_ascii=False, separators=(",", ":")).encode()


def unknown(metadata: Metadata, found: str, supported: str) -> TokenizerError:
    """The error for a tokenizer that cannot be built."""
    return TokenizerError(
        f"{metadata.path} has {found}",
        hint=f"supported: {supported}. Or save tokenizer.json of the model that it was made from "
        f"in the folder {metadata.path.parent}: it is then used instead.",
    )


class GgufVocabulary:
    """The tokens of a GGUF file. Raises TokenizerError for lists that do not fit each other."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.tokens = metadata.texts(f"{_KEY}tokens")
        count = len(self.tokens)
        has_kinds = f"{_KEY}token_type" in metadata.values
        self.kinds = metadata.numbers(f"{_KEY}token_type") if has_kinds else [NORMAL] * count
        if len(self.kinds) != count:
            raise self._wrong(f"{count} tokens and {len(self.kinds)} kinds of them")
        self.ids: dict[str, int] = {}
        for i, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True)):
            if kind != UNUSED:
                self.ids.setdefault(token, i)

    def spelled(self, name: str) -> str | None:
        """The special token of that name."""
        found = self.metadata.token_id(name)
        if found is None:
            return None
        if found >= len(self.tokens):
            raise self._wrong(f"{name}_token_id = {found} of {len(self.tokens)} tokens")
        return self.tokens[found]

    def flag(self, name: str, default: bool) -> bool:
        return self.metadata.flag(_KEY + name, default)

    def merges(self) -> list[list[str]] | None:
        """The pairs that are merged, the first ones first; None where the file lists none."""
        if f"{_KEY}merges" not in self.metadata.values:
            return None
        pairs = []
        for text in self.metadata.texts(f"{_KEY}merges"):
            # A token may begin with a space, and has none elsewhere.
            cut = text.find(" ", 1)
            pair = [text[:cut], text[cut + 1 :]]
            if cut < 0 or not self.ids.keys() >= {*pair, "".join(pair)}:
                raise self._wrong(f"the merge {text!r:.40}, whose parts or result are no tokens")
            pairs.append(pair)
        return pairs

    def has_words(self) -> bool:
        """True if a token is made of several characters, by merges or in one piece."""
        return any(len(token) > 1 and self.kinds[i] == NORMAL for token, i in self.ids.items())

    def derived_merges(self, ranks: Mapping[str, float]) -> list[list[str]]:
        """All merges that give a token, those of the highest rank first, as transformers does."""
        known = self.ids
        found = [
            (rank, cut, len(token) - cut, left, right)
            for token, rank in ranks.items()
            for cut in range(1, len(token))
            if (left := token[:cut]) in known and (right := token[cut:]) in known
        ]
        found.sort(key=itemgetter(0, 1, 2), reverse=True)
        return [[left, right] for *_, left, right in found]

    def added(self) -> list[dict[str, Any]]:
        """The tokens that are found in a text before anything else is looked for."""
        return [
            {
                "id": i,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": self.kinds[i] != USER_DEFINED,
            }
            for token, i in self.ids.items()
            if self.kinds[i] in (UNKNOWN, CONTROL, USER_DEFINED)
        ]

    def around(self) -> dict[str, Any] | None:
        """The tokens before and after every text."""
        pre = SPLITS.get(self.metadata.text(f"{_KEY}pre", ""))
        is_bytes = self.metadata.text(f"{_KEY}model") == "gpt2"
        begins = (pre is not None and pre.begins) if is_bytes else True
        bos = self.spelled("bos") if self.flag("add_bos_token", begins) else None
        eos = self.spelled("eos") if self.flag("add_eos_token", False) else None
        if bos is None and eos is None:
            return None
        return _template(self.ids, bos, eos)

    def _wrong(self, found: str) -> TokenizerError:
        return TokenizerError(
            f"{self.metadata.path} has {found}", hint="the file is damaged: fetch it again"
        )


def _template(ids: Mapping[str, int], bos: str | None, eos: str | None) -> dict[str, Any]:
    def single(text: str, kind: int) -> list[dict[str, Any]]:
        before = [{"SpecialToken": {"id": bos, "type_id": kind}}] if bos is not None else []
        after = [{"SpecialToken": {"id": eos, "type_id": kind}}] if eos is not None else []
        return [*before, {"Sequence": {"id": text, "type_id": kind}}, *after]

    special = [token for token in (bos, eos) if token is not None]
    return {
        "type": "TemplateProcessing",
        "single": single("A", 0),
        "pair": single("A", 0) + single("B", 1),
        "special_tokens": {
            token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in special
        },
    }


def _bpe(ids: Mapping[str, int], merges: Sequence[Sequence[str]]) -> dict[str, Any]:
    # As one text a merge takes half the bytes of a pair; only a space inside needs the pair.
    plain = not any(" " in part for merge in merges for part in merge)
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": dict(ids),
        "merges": [" ".join(merge) if plain else list(merge) for merge in merges],
    }


def _byte_level(vocabulary: GgufVocabulary) -> dict[str, Any]:
    """BPE over bytes, as GPT-2 and most models of today have it."""
    metadata = vocabulary.metadata
    name = metadata.text(f"{_KEY}pre", "")
    if name not in SPLITS:
        which = f"the pre-tokenizer {name!r:.40}" if name else "no name of its pre-tokenizer"
        raise unknown(metadata, which, ", ".join(SPLITS))
    splits = SPLITS[name]
    merges = vocabulary.merges()
    if merges is None and vocabulary.has_words():
        raise unknown(metadata, "a vocabulary of bytes without merges", "files with both")
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    patterns = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        for p in splits.patterns
    ]
    return {
        "normalizer": {"type": "NFC"} if splits.composed else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*patterns, {**level, "use_regex": False}],
        },
        "decoder": {**level, "use_regex": True},
        "model": _bpe(vocabulary.ids, merges or ()) | {"ignore_merges": splits.whole},
    }


def _sentencepiece(vocabulary: GgufVocabulary) -> dict[str, Any]:
    """Pieces with scores, and bytes for what is in none of them, as Llama 2 and Gemma have it."""
    gemma = vocabulary.metadata.architecture.startswith("gemma")
    if gemma:  # whose scores do not follow its merges, as the order of its tokens does
        vocabulary.ids = {_runs_of_spaces(token): i for token, i in vocabulary.ids.items()}
        ranks: Mapping[str, float] = {token: -i for token, i in vocabulary.ids.items()}
    else:
        scores = vocabulary.metadata.numbers(f"{_KEY}scores")
        ranks = {token: scores[i] for token, i in vocabulary.ids.items() if i < len(scores)}
    merges = vocabulary.merges()
    merges = vocabulary.derived_merges(ranks) if merges is None else merges
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    normalizers: list[dict[str, Any]] = [spaces]
    if vocabulary.flag("add_space_prefix", not gemma):
        normalizers.insert(0, {"type": "Prepend", "prepend": _SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unk = vocabulary.spelled("unknown")
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(vocabulary.ids, merges)
        | {"unk_token": unk, "fuse_unk": True, "byte_fallback": True},
    }


def _runs_of_spaces(token: str) -> str:
    """A token of spaces alone, which the converter spells by real ones."""
    return _SPACE * len(token) if token and not token.strip(" ") else token


_MODELS = {"gpt2": _byte_level, "llama": _sentencepiece}
