"""Texts of single tokens: bytes, and a text where the bytes are whole characters."""

from __future__ import annotations

from ingot.runtime.spelled_bytes import spelled_bytes
from ingot.runtime.tokenizer import Tokenizer

_INCOMPLETE = "\ufffd"
_WORD = "▁"  # how sentencepiece spells a space


class TokenTexts:
    """The texts of tokens, looked up once each; with `as_ids` they are `token_id:N`.

    Without a tokenizer they have no other texts.
    """

    def __init__(self, tokenizer: Tokenizer | None, *, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids
        self._known: dict[int, tuple[str, bytes]] = {}

    def text(self, token_id: int) -> str:
        """Its text; `bytes:\\xe2\\x80` for a part of a character, as OpenAI writes it."""
        return self._look_up(token_id)[0]

    def data(self, token_id: int) -> bytes:
        """Its bytes."""
        return self._look_up(token_id)[1]

    def _look_up(self, token_id: int) -> tuple[str, bytes]:
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._read(token_id)
        return known

    def _read(self, token_id: int) -> tuple[str, bytes]:
        if self._tokenizer is None:
            return f"token_id:{token_id}", b""
        text = self._tokenizer.decode([token_id], False)
        spelling = self._tokenizer.token(token_id) or ""
        if spelling.startswith(_WORD) and not text.startswith(" "):
            text = f" {text}"  # which decoders drop at the beginning of a text
        data = text.encode()
        if _INCOMPLETE in text:
            data = spelled_bytes(spelling) or data
            if data != text.encode():
                text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
        return (f"token_id:{token_id}" if self._as_ids else text), data
