"""Tokenizers that take the longest token at each place of a text's bytes, such as RWKV's.

The `tokenizers` library says so by a WordPiece model over bytes, and computes it by trying all that
is left of a text at each token: in a time that grows with the square of its length and more. This
gives the same tokens, and tries the lengths of tokens alone that begin with the next two bytes.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ingot.artifact.byte_letters import bytes_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class LongestMatch:
    """Text to tokens, as a tokenizer of that kind does it.

    Args:
        ids: the tokens, which have each single byte among them.
        added: tokens that are found in a text before all others.
        before: tokens at the beginning of each text that special ones are added to.
    """

    def __init__(
        self, ids: Mapping[bytes, int], added: Mapping[str, int], before: list[int]
    ) -> None:
        self._ids, self._added, self._before = ids, added, before
        lengths: dict[bytes, set[int]] = defaultdict(set)
        for token in ids:
            lengths[token[:2]].add(len(token))
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}
        # Of alternatives, a regular expression takes the first that matches: the longest.
        spellings = sorted(added, key=lambda text: (-len(text), text))
        self._finder = re.compile(f"({'|'.join(map(re.escape, spellings))})") if added else None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text, which has no lone surrogates."""
        found = list(self._before) if add_special_tokens else []
        for place, part in enumerate(self._finder.split(text) if self._finder else [text]):
            if place % 2:
                found.append(self._added[part])
            else:
                self._match(part.encode(), found)
        return found

    def _match(self, data: bytes, found: list[int]) -> None:
        """Adds the tokens of bytes."""
        ids, lengths, at, end = self._ids, self._lengths, 0, len(data)
        while at < end:
            for length in lengths.get(data[at : at + 2], ()):
                token = ids.get(data[at : at + length])
                if token is not None and at + length <= end:
                    found.append(token)
                    at += length
                    break
            else:
                found.append(ids[data[at : at + 1]])
                at += 1


def longest_match(backend: Tokenizer) -> LongestMatch | None:
    """The same tokens in less time, of a tokenizer that takes the longest; None for any other."""
    model = backend.model
    if type(model).__name__ != "WordPiece" or model.continuing_subword_prefix:
        return None
    if backend.normalizer is not None or not _over_bytes(backend.pre_tokenizer):
        return None
    added = backend.get_added_tokens_decoder()
    if any(t.lstrip or t.rstrip or t.single_word for t in added.values()):
        return None
    before, *_ = cut = [backend.encode(text).ids for text in ("", "a")]
    if cut[1] != [*before, *backend.encode("a", add_special_tokens=False).ids]:
        return None  # tokens follow a text
    kept = {i: t.content for i, t in added.items() if not (t.special and _as_text(backend))}
    names = {t.content for t in added.values()}
    vocabulary = backend.get_vocab(with_added_tokens=False).items()
    ids = {bytes_of(s): i for s, i in vocabulary if s not in names or i not in added}
    tokens = {token: i for token, i in ids.items() if token}
    if not all(bytes([byte]) in tokens for byte in range(256)):
        return None
    return LongestMatch(tokens, {content: i for i, content in kept.items()}, before)


def _as_text(backend: Tokenizer) -> bool:
    """True if special tokens are text like any other."""
    return bool(backend.encode_special_tokens)


def _over_bytes(part: Any) -> bool:
    """True if a text is spelled by its bytes and cut nowhere."""
    state = {} if part is None else json.loads(part.__getstate__())
    flags = (state.get("type"), state.get("add_prefix_space"), state.get("use_regex"))
    return flags == ("ByteLevel", False, False)
