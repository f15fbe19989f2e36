"""Text from tokens as they come: never half a character, and in the end the full decode."""

from __future__ import annotations

import re
from collections.abc import Callable

_BYTE_TOKEN = re.compile(r"^<0x[0-9A-Fa-f]{2}>$")
_INCOMPLETE = "\ufffd"  # what a decoder writes for a character whose bytes are not all there


class Detokenizer:
    """Decodes a growing list of tokens piece by piece.

    What is not settled by later tokens is held back: the bytes of an unfinished character, and a
    run of byte tokens (`<0xE4>`), which decoders judge as a whole. The pieces together are
    `decode` of all tokens.

    Args:
        decode: text of a list of tokens.
        token: the spelling of a token in the vocabulary; None for one that leaves no text and so
            does not end a run of byte tokens either.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], token: Callable[[int], str | None]
    ) -> None:
        self._decode = decode
        self._token = token
        self._token_ids: list[int] = []
        self._text = ""
        # Only a window of tokens is decoded each time. It begins with tokens whose text is out,
        # because a decoder treats the first token of a text differently.
        self._window = 0
        self._settled = 0  # end of the tokens in the window whose text is out
        self._num_out = 0  # characters of the window's text that are out

    def push(self, token_id: int) -> str:
        """Adds a token and returns the text that is settled by it, possibly none."""
        self._token_ids.append(token_id)
        spelling = self._token(token_id)
        if spelling is None or _BYTE_TOKEN.match(spelling):
            return ""
        text = self._decode(self._token_ids[self._window :])
        whole = not text.endswith(_INCOMPLETE)
        new = text[self._num_out : None if whole else -1]
        if whole and new:
            self._window, self._settled = self._settled, len(self._token_ids)
            self._num_out = len(self._decode(self._token_ids[self._window :]))
        else:
            self._num_out += len(new)
        self._text += new
        return new

    def finish(self) -> str:
        """The text that was held back."""
        text = self._decode(self._token_ids)
        new = text[len(self._text) :]
        self._text = text
        return new
